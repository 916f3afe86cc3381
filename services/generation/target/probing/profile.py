"""The numerics profile: which program computes the bits of a token stream, and whether the probe confirmed it.

On the CPU it names a specification, not a machine: all machines whose passes have one fingerprint have one profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledger.encoding.cid import cid_of_json
from services.generation.target.probing.kept_probes import KeptProbes
from services.generation.target.probing.probe import ProbeReport, probe
from services.generation.target.target import Target

SAMPLER = "kolm-sampler/2"


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


def measure_profile(target: Target, kept: KeptProbes | None = None) -> NumericsProfile:
    """Probe a freshly loaded target, where no earlier result is `kept`, and describe what its bits depend on."""
    report = kept.find(target) if kept else None
    if report is None:
        report = probe(target)
        if kept:
            kept.keep(target, report)
    document = {
        "type": "kolm.profile.v2",
        **target.numerics,
        "sampler": SAMPLER,
        "fingerprint": report.fingerprint,
    }
    return NumericsProfile(document, cid_of_json(document), report)
