"""The loop of a team's members: the operations of a program in order, with a barrier between them."""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from services.generation.target.kernels.code import I32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import BARRIER, KERNEL, PASS, WORDS, Words

_SPINS = 4000  # reads of a barrier before a member sleeps: about a tenth of a millisecond
_IDLE_SPINS = 20000  # reads before it sleeps until the next program, which in decoding comes half a millisecond later
_FUTEX = {"x86": 202, "arm": 98}  # Linux's number of futex(2)
_WAIT, _WAKE = 128, 129  # its operations, private to this process
_FLOAT_MODE = 0x1F80  # MXCSR: round to nearest, subnormals kept, no traps
POOL = ("programs", "idle", "place", "members", "arrived", "stages", "asleep", "slept")
"""The members' shared words, each in its own cache line: twice the number of programs, and members that sleep until the
next one; the current pass and its number of members; members at the barrier, passed barriers, members that sleep at a
barrier, and the nanoseconds of that. The words outlive all passes: a member may still read a barrier after a pass.
"""


def add_symbols() -> None:
    """Tell LLVM the addresses of the functions that kernels call."""
    system = ctypes.CDLL(None)
    for name in ("syscall", "clock_gettime"):
        llvm.add_symbol(name, ctypes.cast(getattr(system, name), ctypes.c_void_p).value)


def build(module: ir.Module, machine: Machine) -> None:
    """Add `member(pool, number)`, which all threads but the caller run, `run_team(pool, pass, members)`, and
    `set_float_mode(mode)` of the calling thread.
    """
    _float_mode(module, machine)
    run = _run(module, machine)
    _member(module, machine, run)
    c = Code(module, machine, "run_team", (POINTER, POINTER, I64), exported=True)
    b, (pool, place, members) = c.b, c.arguments
    with c.when(c.compare(members, ">", 1)):
        programs, idle = _word(c, pool, "programs"), _word(c, pool, "idle")
        b.atomic_rmw("add", programs, c.i(1), "seq_cst")  # odd while the next words are written
        c.store(b.ptrtoint(place, I64), _word(c, pool, "place"), 0)
        c.store(members, _word(c, pool, "members"), 0)
        b.atomic_rmw("add", programs, c.i(1), "seq_cst")
        with c.when(c.compare(b.load_atomic(idle, "seq_cst", 8, typ=I64), ">", 0)):
            _futex(c, programs, _WAKE, c.i(1 << 30))
    c.call(run, pool, place, c.i(0), members)
    c.done()


def _word(c: Code, pool: Value, name: str) -> Value:
    return c.at(pool, 64 * POOL.index(name))


def _member(module: ir.Module, machine: Machine, run: Any) -> None:
    """Wait for a program, run this member's part of it, and repeat."""
    c = Code(module, machine, "member", (POINTER, I64), exported=True)
    b, (pool, number) = c.b, c.arguments
    programs = _word(c, pool, "programs")
    seen = c.variable(c.i(0))
    again = c.function.append_basic_block("again")
    b.branch(again)
    b.position_at_end(again)
    now = _wait(c, programs, _word(c, pool, "idle"), c.get(seen), _IDLE_SPINS, None)
    place = b.inttoptr(c.load(_word(c, pool, "place"), 0, I64), POINTER)
    members = c.load(_word(c, pool, "members"), 0, I64)
    # Words that changed while they were read belong to a program without this member.
    whole = c.compare(b.load_atomic(programs, "seq_cst", 8, typ=I64), "==", now)
    even = c.compare(c.rem(now, 2), "==", 0)
    with c.when(b.and_(whole, even)):
        c.put(now, seen)
        with c.when(c.compare(number, "<", members)):
            c.call(run, pool, place, number, members)
    b.branch(again)


def _wait(c: Code, place: Value, asleep: Value, old: Value, spins: int, slept: Value | None) -> Value:
    """Wait until the word at `place` is no longer `old`; return its value. The time asleep is added to `slept`."""
    b = c.b
    look, again, sleep, out = (c.function.append_basic_block(name) for name in ("look", "again", "sleep", "out"))
    entry = b.block
    b.branch(look)
    b.position_at_end(look)
    count = b.phi(I64)
    count.add_incoming(c.i(0), entry)
    now = b.load_atomic(place, "seq_cst", 8, typ=I64)
    b.cbranch(c.compare(now, "==", old), again, out)
    b.position_at_end(again)
    _pause(c)
    more = c.add(count, 1)
    count.add_incoming(more, again)
    b.cbranch(c.compare(more, "<", spins), look, sleep)
    b.position_at_end(sleep)
    before = _nanoseconds(c)
    b.atomic_rmw("add", asleep, c.i(1), "seq_cst")
    _futex(c, place, _WAIT, old)  # returns immediately if the value has changed
    b.atomic_rmw("add", asleep, c.i(-1), "seq_cst")
    if slept is not None:
        b.atomic_rmw("add", slept, c.sub(_nanoseconds(c), before), "seq_cst")
    count.add_incoming(more, b.block)
    b.branch(look)
    b.position_at_end(out)
    return now


def _run(module: ir.Module, machine: Machine) -> Any:
    """run(pool, pass, member, members): execute all operations of the program in order."""
    barrier = _barrier(module, machine)
    c = Code(module, machine, "run", (POINTER, POINTER, I64, I64))
    pool, place, me, all_ = c.arguments
    passed = Words(c, place, PASS, 0)
    before = _set_float_mode(c)
    kernel = ir.FunctionType(ir.VoidType(), (POINTER, POINTER, I64, I64))
    with c.loop(passed.operations) as number:
        record = c.at(passed.program, c.mul(number, 8 * WORDS))
        c.b.call(c.b.inttoptr(c.word(record, KERNEL), kernel.as_pointer()), (record, place, me, all_))
        with c.when(c.compare(c.word(record, BARRIER), "!=", 0)):
            c.call(barrier, pool, all_)
    _restore_float_mode(c, before)
    return c.done()


def _barrier(module: ir.Module, machine: Machine) -> Any:
    """barrier(pool, members): the last member to arrive begins a new stage; the others wait for it.

    They spin, because a stage takes microseconds, and sleep after a while: a member that lost its CPU to another
    process continues sooner if no other member spins on a CPU.
    """
    c = Code(module, machine, "barrier", (POINTER, I64))
    b, (pool, members) = c.b, c.arguments
    arrived, stages, asleep, slept = (_word(c, pool, name) for name in ("arrived", "stages", "asleep", "slept"))
    with c.when(c.compare(members, ">", 1)):
        now = b.load_atomic(stages, "seq_cst", 8, typ=I64)
        before = b.atomic_rmw("add", arrived, c.i(1), "seq_cst")

        def begin() -> None:
            b.atomic_rmw("xchg", arrived, c.i(0), "seq_cst")
            b.atomic_rmw("xchg", stages, c.add(now, 1), "seq_cst")
            with c.when(c.compare(b.load_atomic(asleep, "seq_cst", 8, typ=I64), ">", 0)):
                _futex(c, stages, _WAKE, members)

        def wait() -> None:
            _wait(c, stages, asleep, now, _SPINS, slept)

        c.either(c.compare(c.add(before, 1), "==", members), begin, wait)
    return c.done()


def _futex(c: Code, place: Value, operation: int, value: Value) -> None:
    """Linux's futex(2) on the low half of a word."""
    number = _FUTEX["x86" if c.machine.triple.startswith("x86") else "arm"]
    system = c.external("syscall", I64, (I64, POINTER, I64, I64, I64, I64, I64))
    nothing = [c.i(0)] * 3
    c.call(system, c.i(number), place, c.i(operation), c.b.and_(value, c.i(0xFFFFFFFF)), *nothing)


def _nanoseconds(c: Code) -> Value:
    """Linux's CLOCK_MONOTONIC."""
    time = c.stack_alloc(16)
    c.call(c.external("clock_gettime", I32, (I32, POINTER)), ir.Constant(I32, 1), time)
    return c.add(c.mul(c.word(time, 0), 1_000_000_000), c.word(time, 1))


def _pause(c: Code) -> None:
    if c.machine.triple.startswith("x86"):
        c.call(c.external("llvm.x86.sse2.pause", ir.VoidType(), ()))
    else:
        c.call(c.external("llvm.aarch64.hint", ir.VoidType(), (I32,)), ir.Constant(I32, 1))


def float_mode(machine: Machine) -> int:
    """The argument of `set_float_mode` for rounding to nearest with subnormals."""
    return _FLOAT_MODE if machine.triple.startswith("x86") else 0


def _float_mode(module: ir.Module, machine: Machine) -> None:
    c = Code(module, machine, "set_float_mode", (I64,), exported=True)
    (mode,) = c.arguments
    _restore_float_mode(c, mode if not machine.triple.startswith("x86") else c.b.trunc(mode, I32))
    c.done()


def _set_float_mode(c: Code) -> Value:
    """Set this thread to round to nearest and keep subnormals; return its earlier mode."""
    if not c.machine.triple.startswith("x86"):
        before = c.call(c.external("llvm.aarch64.get.fpcr", I64, ()))
        c.call(c.external("llvm.aarch64.set.fpcr", ir.VoidType(), (I64,)), c.i(0))
        return before
    place = c.stack_alloc(8)
    c.call(c.external("llvm.x86.sse.stmxcsr", ir.VoidType(), (POINTER,)), place)
    before = c.load(place, 0, I32)
    c.store(ir.Constant(I32, _FLOAT_MODE), place, 0)
    c.call(c.external("llvm.x86.sse.ldmxcsr", ir.VoidType(), (POINTER,)), place)
    return before


def _restore_float_mode(c: Code, before: Value) -> None:
    if not c.machine.triple.startswith("x86"):
        c.call(c.external("llvm.aarch64.set.fpcr", ir.VoidType(), (I64,)), before)
        return
    place = c.stack_alloc(8)
    c.store(before, place, 0)
    c.call(c.external("llvm.x86.sse.ldmxcsr", ir.VoidType(), (POINTER,)), place)
