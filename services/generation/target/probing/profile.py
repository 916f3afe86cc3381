"""The numerics profile: which program computes the bits of a token stream, and whether the probe confirmed it.

On the CPU it names a specification, not a machine: all machines whose passes have one fingerprint have one profile.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ledger.encoding.cid import cid_of_json
from services.generation.target.probing.kept_probes import KeptProbes
from services.generation.target.probing.probe import ProbeReport, probe
from services.generation.target.target import Target

_log = logging.getLogger(__name__)

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
    report = (kept.find(target) or _probed(target, kept)) if kept else probe(target)
    document = {
        "type": "kolm.profile.v2",
        **target.numerics,
        "sampler": SAMPLER,
        "fingerprint": report.fingerprint,
    }
    return NumericsProfile(document, cid_of_json(document), report)


def _probed(target: Target, kept: KeptProbes) -> ProbeReport:
    _log.info("probing the numerics, once for this model on this machine")
    with kept.probing():  # a server and its auditor start together: one of them probes
        report = kept.find(target)
        if report is None:
            report = probe(target)
            kept.keep(target, report)
    return report
