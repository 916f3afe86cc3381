"""The team of threads that runs a program of operations, and the barrier at which its members wait for each other.

The threads are those of torch's OpenMP, which are awake already: a second pool would fight with it for the same CPUs.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from services.generation.target.canonical.code import I32, I64, POINTER, Code, Value
from services.generation.target.canonical.machine import Machine
from services.generation.target.canonical.records import BARRIER, KERNEL, PASS, WORDS, Words

_SPINS = 2000  # looks at the barrier before a member offers its CPU to others
_FLOAT_MODE = 0x1F80  # MXCSR: round to nearest, subnormals kept, no traps
_SYMBOLS = ("omp_get_thread_num", "omp_get_num_threads")


@cache
def _openmp() -> Any:
    """torch's GNU OpenMP; None where torch does not run on it."""
    import torch

    path = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    return ctypes.CDLL(str(path)) if path.exists() else None


def team_size() -> int:
    """Threads that a pass may use: torch's number, or 1 where torch does not run on GNU OpenMP."""
    import torch

    return torch.get_num_threads() if _openmp() is not None else 1


def add_symbols() -> None:
    """Make what the kernels call known to LLVM."""
    library = _openmp()
    for name in _SYMBOLS:
        function = getattr(library, name) if library is not None else ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
        llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    llvm.add_symbol("sched_yield", ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value)


def runner(kernels: dict[str, int]) -> Any:
    """run(address of a pass, threads): all operations of its program, on so many threads. Releases the GIL."""
    alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernels["run_alone"])
    library, member = _openmp(), kernels["run_member"]
    if library is None:
        return lambda place, threads: alone(place)
    parallel = library.GOMP_parallel
    parallel.argtypes, parallel.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None

    def run(place: int, threads: int) -> None:
        if threads == 1:
            alone(place)
        else:
            parallel(member, place, threads, 0)

    return run


def cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def build(module: ir.Module, machine: Machine) -> None:
    """Add `run_member(pass)`, what a thread of a team runs, and `run_alone(pass)` to a module."""
    run = _run(module, machine)
    c = Code(module, machine, "run_member", (POINTER,), exported=True)
    me, all_ = (c.b.sext(c.call(c.external(name, I32, ())), I64) for name in _SYMBOLS)
    c.call(run, c.arguments[0], me, all_)
    c.done()
    c = Code(module, machine, "run_alone", (POINTER,), exported=True)
    c.call(run, c.arguments[0], c.i(0), c.i(1))
    c.done()


def _run(module: ir.Module, machine: Machine) -> Any:
    """run(pass, member, members): every operation of the program, in order."""
    barrier = _barrier(module, machine)
    c = Code(module, machine, "run", (POINTER, I64, I64))
    place, me, all_ = c.arguments
    passed = Words(c, place, PASS, 0)
    before = _set_float_mode(c)
    kernel = ir.FunctionType(ir.VoidType(), (POINTER, POINTER, I64, I64))
    with c.loop(passed.operations) as number:
        record = c.at(passed.program, c.mul(number, 8 * WORDS))
        c.b.call(c.b.inttoptr(c.word(record, KERNEL), kernel.as_pointer()), (record, place, me, all_))
        with c.when(c.compare(c.word(record, BARRIER), "!=", 0)):
            c.call(barrier, place, all_)
    _restore_float_mode(c, before)
    return c.done()


def _barrier(module: ir.Module, machine: Machine) -> Any:
    """barrier(pass, members): the last to arrive begins a new generation; the others look for it.

    They spin, because a stage takes microseconds, and give way after a while, because a machine may have other work.
    """
    c = Code(module, machine, "barrier", (POINTER, I64))
    b, (place, members) = c.b, c.arguments
    arrived, generation = (c.at(place, 8 * PASS.index(name)) for name in ("arrived", "generation"))
    with c.when(c.compare(members, ">", 1)):
        now = b.load_atomic(generation, "acquire", 8, typ=I64)
        before = b.atomic_rmw("add", arrived, c.i(1), "acq_rel")

        def begin() -> None:
            b.atomic_rmw("xchg", arrived, c.i(0), "release")
            b.atomic_rmw("xchg", generation, c.add(now, 1), "release")

        def wait() -> None:
            look, again, give_way, out = (c.function.append_basic_block(n) for n in ("look", "again", "yield", "out"))
            entry = b.block
            b.branch(look)
            b.position_at_end(look)
            spins = b.phi(I64)
            spins.add_incoming(c.i(0), entry)
            seen = b.load_atomic(generation, "acquire", 8, typ=I64)
            b.cbranch(c.compare(seen, "==", now), again, out)
            b.position_at_end(again)
            _pause(c)
            more = c.add(spins, 1)
            spins.add_incoming(more, again)
            b.cbranch(c.compare(more, "<", _SPINS), look, give_way)
            b.position_at_end(give_way)
            c.call(c.external("sched_yield", I32, ()))
            spins.add_incoming(more, give_way)
            b.branch(look)
            b.position_at_end(out)

        c.either(c.compare(c.add(before, 1), "==", members), begin, wait)
    return c.done()


def _pause(c: Code) -> None:
    if c.machine.triple.startswith("x86"):
        c.call(c.external("llvm.x86.sse2.pause", ir.VoidType(), ()))
    else:
        c.call(c.external("llvm.aarch64.hint", ir.VoidType(), (I32,)), ir.Constant(I32, 1))


def _set_float_mode(c: Code) -> Value:
    """Round to nearest and keep subnormals, whatever this thread was told before; returns what that was."""
    if not c.machine.triple.startswith("x86"):
        before = c.call(c.external("llvm.aarch64.get.fpcr", I64, ()))
        c.call(c.external("llvm.aarch64.set.fpcr", ir.VoidType(), (I64,)), c.i(0))
        return before
    place = c.room(8)
    c.call(c.external("llvm.x86.sse.stmxcsr", ir.VoidType(), (POINTER,)), place)
    before = c.load(place, 0, I32)
    c.store(ir.Constant(I32, _FLOAT_MODE), place, 0)
    c.call(c.external("llvm.x86.sse.ldmxcsr", ir.VoidType(), (POINTER,)), place)
    return before


def _restore_float_mode(c: Code, before: Value) -> None:
    if not c.machine.triple.startswith("x86"):
        c.call(c.external("llvm.aarch64.set.fpcr", ir.VoidType(), (I64,)), before)
        return
    place = c.room(8)
    c.store(before, place, 0)
    c.call(c.external("llvm.x86.sse.ldmxcsr", ir.VoidType(), (POINTER,)), place)
