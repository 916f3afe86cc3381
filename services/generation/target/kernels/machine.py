"""The machine that kernels are compiled for. It decides how many elements are computed side by side, never a bit."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
    lanes: int  # float32 in a vector register
    registers: int  # vector registers
    letter: str  # LLVM's constraint for a vector register in inline assembly
    products: (
        str  # of bytes: four at a time into int32 ("vnni", "sdot"), two into int16 ("pairs"), one by one ("plain")
    )
    needs: tuple[str, ...]  # features beyond those of `cpu`, as LLVM names them
    matrices: str = ""  # of bytes: 16 x 64 with 64 x 16 ("amx"), 2 x 8 with 8 x 2 ("smmla")

    @property
    def features(self) -> str:
        """What kernels may use, for LLVM."""
        return ",".join([f"+{feature}" for feature in self.needs] + ["-prefer-256-bit"] * (self.lanes == 16))


_X86, _ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
_FMA = ("fma", "f16c")
_AVX2 = ("avx2", *_FMA)
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", *_AVX2)
_AMX = ("amx-tile", "amx-int8")

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
"""The best first, of each architecture."""


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


@cache
def looks_ahead() -> bool:
    """Whether the CPU fetches weights, keys and values of few rows early enough by itself. AMD's do; one row takes
    Intel's 1.6 times as long where kernels do not ask. Of others nothing is known.
    """
    return "GenuineIntel" not in _linux_says()


_UNREAD = {"dotprod": "asimddp", "i8mm": "i8mm"}
"""Features that LLVM does not read from an Arm CPU, and Linux's words for them."""


def _able() -> list[str]:
    """Names of the instruction sets of this CPU, the best first."""
    architecture = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    has = dict(llvm.get_host_cpu_features())
    has |= {feature: f" {word}" in _linux_says() for feature, word in _UNREAD.items()}
    return [
        machine.name
        for machine in MACHINES.values()
        if machine.triple.startswith(architecture)
        and all(has.get(feature) for feature in machine.needs)
        and (machine.matrices != "amx" or _matrices_are_permitted())
    ]


def _matrices_are_permitted() -> bool:
    """Whether Linux lets this process, and those that it forks, use the registers of matrices; asks for it."""
    arch_prctl, request, tile_data = 158, 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0)


def _linux_says() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
