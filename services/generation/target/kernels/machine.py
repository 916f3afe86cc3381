"""The machine that kernels are compiled for. It decides how many elements are computed side by side, never a bit."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from services.generation.target.errors import TargetError

RESTRICTION = "KOLM_INSTRUCTION_SET"
"""Environment variable: an instruction set by name, where less than the CPU has is wanted."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An instruction set, in LLVM's words, and the tiles that suit its registers."""

    name: str
    triple: str  # LLVM's architecture, vendor and system
    cpu: str
    features: str
    lanes: int  # float32 in a vector register
    registers: int  # vector registers
    letter: str  # LLVM's constraint for a vector register in inline assembly
    products: str = "plain"  # of bytes: four at a time into int32 ("vnni"), two into int16 ("pairs"), one by one


_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_AVX512 = "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx2,+fma,+f16c,-prefer-256-bit"

MACHINES = {
    machine.name: machine
    for machine in (
        Machine("avx512vnni", _X86, "icelake-server", _AVX512 + ",+avx512vnni", 16, 32, "v", "vnni"),
        Machine("avx512", _X86, "skylake-avx512", _AVX512, 16, 32, "v", "pairs"),
        Machine("avx2", _X86, "x86-64", "+avx2,+fma,+f16c", 8, 16, "x", "pairs"),
        Machine("scalar", _X86, "x86-64", "+fma,+f16c", 1, 16, "x"),
        Machine("neon", _ARM, "generic", "+neon,+fp-armv8", 4, 32, "w"),
    )
}


@cache
def this_machine() -> Machine:
    """The best instruction set of the CPU at hand, or the one that KOLM_INSTRUCTION_SET names.

    Raises:
        TargetError: the CPU has no fused multiply-add, or not the instruction set asked for.
    """
    able = _able()
    wanted = os.environ.get(RESTRICTION) or (able[0] if able else "")
    if wanted not in able:
        has = ", ".join(able) or "none"
        raise TargetError(
            f"{RESTRICTION}: {wanted or 'a CPU with fused multiply-add'} is not available; this CPU supports: {has}"
        )
    return MACHINES[wanted]


def _able() -> list[str]:
    """Names of the instruction sets of this CPU, the best first."""
    if platform.machine() in ("aarch64", "arm64"):
        return ["neon"]
    if platform.machine() not in ("x86_64", "AMD64"):
        return []
    has = llvm.get_host_cpu_features()
    needs = {
        "avx512vnni": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "fma", "f16c"),
        "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c"),
        "avx2": ("avx2", "fma", "f16c"),
        "scalar": ("fma", "f16c"),
    }
    return [name for name, features in needs.items() if all(has.get(feature) for feature in features)]


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
