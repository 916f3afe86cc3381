"""The numerics profile: everything that the bits of a token stream depend on besides the model and the request."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ledger.cid import cid_of_json
from services.generation.target.kernels import BLOCK, LANES
from services.generation.target.probe import ProbeReport, probe
from services.generation.target.target import Target

SAMPLER = "philox4x32-10/gumbel-argmax/v1"
_LIBRARIES = ("torch", "numpy", "numba", "llvmlite")


@dataclass(frozen=True, slots=True)
class NumericsProfile:
    """A profile and what the probe found. `cid` names the document; two machines with one cid promise the same bits."""

    document: dict[str, Any]
    cid: str
    report: ProbeReport

    @property
    def passed(self) -> bool:
        """Whether speculation may be served on it; off needs no proof, it is the reference."""
        return self.report.passed


def measure_profile(target: Target) -> NumericsProfile:
    """Probe a freshly loaded target and describe what its bits depend on."""
    kernels, report = target.kernels, probe(target)
    document = {
        "type": "kolm.profile.v1",
        "machine": platform.machine(),
        "device": kernels.device,
        "instruction_set": kernels.instruction_set,
        "dtype": kernels.dtype,
        "linear": kernels.linear,
        "attention": kernels.attention,
        "adapters": kernels.adapters,
        "row_counts": list(kernels.row_counts),
        "block": BLOCK,
        "lanes": LANES,
        "sampler": SAMPLER,
        "libraries": {name: version(name) for name in _LIBRARIES},
        "libc": " ".join(platform.libc_ver()),
        "fingerprint": report.fingerprint,
    }
    return NumericsProfile(document, cid_of_json(document), report)
