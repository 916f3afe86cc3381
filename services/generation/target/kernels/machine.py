"""The machine for which kernels are compiled. It determines the number of lanes and tiles, and no bit of a result."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from services.generation.target.errors import TargetError

RESTRICTION = "KOLM_INSTRUCTION_SET"
"""Environment variable: the name of an instruction set to use in place of the CPU's best."""
_UNREAD = {"dotprod": "asimddp", "i8mm": "i8mm"}
"""Features of Arm CPUs that LLVM does not detect, and Linux's names of them."""
_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_FMA = ("fma", "f16c")
_AVX2 = ("avx2", *_FMA)
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", *_AVX2)
_AMX = ("amx-tile", "amx-int8")


@dataclass(frozen=True, slots=True)
class Machine:
    """An instruction set in LLVM's terms, and properties that determine tiles."""

    name: str
    triple: str  # LLVM's architecture, vendor and system
    cpu: str
    lanes: int  # float32 in a vector register
    registers: int  # vector registers
    letter: str  # LLVM's constraint for a vector register in inline assembly
    products: str  # of bytes: four into an int32 ("vnni", "sdot"), two into an int16 ("pairs"), or single ("plain")
    needs: tuple[str, ...]  # LLVM's names of features in addition to `cpu`'s
    matrices: str = ""  # of bytes: 16 x 64 with 64 x 16 ("amx"), 2 x 8 with 8 x 2 ("smmla")

    @property
    def features(self) -> str:
        """The features that kernels may use, as LLVM's string."""
        return ",".join([f"+{feature}" for feature in self.needs] + ["-prefer-256-bit"] * (self.lanes == 16))

    def vectors(self, rows: int, columns: int) -> int:
        """Adjacent vectors of at most `columns` columns whose sums fit the registers, for each of the rows."""
        fits = (12 if self.registers == 16 else 24) // rows
        return min(columns // self.lanes, 1 << max(fits.bit_length() - 1, 0))


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("amx", _X86, "icelake-server", 16, 32, "v", "vnni", (*_AVX512, "avx512vnni", *_AMX), matrices="amx"),
        Machine("avx512vnni", _X86, "icelake-server", 16, 32, "v", "vnni", (*_AVX512, "avx512vnni")),
        Machine("avx512", _X86, "skylake-avx512", 16, 32, "v", "pairs", _AVX512),
        Machine("avxvnni", _X86, "x86-64", 8, 16, "x", "vnni", (*_AVX2, "avxvnni")),
        Machine("avx2", _X86, "x86-64", 8, 16, "x", "pairs", _AVX2),
        Machine("scalar", _X86, "x86-64", 1, 16, "x", "plain", _FMA),
        Machine("neoni8mm", _ARM, "generic", 4, 32, "w", "sdot", ("dotprod", "i8mm"), matrices="smmla"),
        Machine("neondot", _ARM, "generic", 4, 32, "w", "sdot", ("dotprod",)),
        Machine("neon", _ARM, "generic", 4, 32, "w", "plain", ()),
    )
}
"""Machines by name, for each architecture the best first."""


@cache
def this_machine() -> Machine:
    """The best instruction set of this CPU, or KOLM_INSTRUCTION_SET.

    Raises:
        TargetError: the CPU has no fused multiply-add, or lacks the requested instruction set.
    """
    supported = _supported()
    wanted = os.environ.get(RESTRICTION) or (supported[0] if supported else "")
    if wanted not in supported:
        has = ", ".join(supported) or "none"
        raise TargetError(
            f"{RESTRICTION}: {wanted or 'a CPU with fused multiply-add'} is not available; this CPU supports: {has}"
        )
    return MACHINES[wanted]


@cache
def looks_ahead() -> bool:
    """Whether the CPU prefetches weights, keys and values for few rows by itself. AMD's CPUs do; without prefetch
    instructions one row takes 1.6 times as long on Intel's. Others were not measured.
    """
    return "GenuineIntel" not in _cpuinfo()


def _supported() -> list[str]:
    """Names of the instruction sets of this CPU, the best first."""
    architecture = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    has = dict(llvm.get_host_cpu_features())
    has |= {feature: f" {word}" in _cpuinfo() for feature, word in _UNREAD.items()}
    return [
        machine.name
        for machine in MACHINES.values()
        if machine.triple.startswith(architecture)
        and all(has.get(feature) for feature in machine.needs)
        and (machine.matrices != "amx" or _request_matrices())
    ]


def _request_matrices() -> bool:
    """Ask Linux for AMX's registers in this process and its children; return whether they are granted."""
    arch_prctl, request, tile_data = 158, 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0)


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def cpus() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def give_way() -> None:
    """Let other threads take the CPUs from the calling one, which computes mostly while one is idle."""
    if sys.platform == "linux":  # where a priority is a thread's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
