"""The examination of what another engine has served: the same engine again with speculation off, and a pass of kolm's
own arithmetic along the output. Each check has a finding of its own, and none of them is EXACT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from ledger.documents.audit import (
    ACCUSATIONS,
    AGAIN,
    AUDITOR,
    CONSISTENT,
    DEVIATION,
    ENGINE,
    INCONSISTENT,
    PASSES,
    REFERENCE,
    SAME,
    UNCHECKED,
    UNSTABLE,
    Deviation,
    Drift,
    ReferencePass,
    ReferenceThresholds,
)
from ledger.documents.content import Content
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.receipt import Receipt
from ledger.encoding.stream_digest import token_digest
from services.auditor.audit_error import CannotReplay, OutOfReach
from services.auditor.examination import Finding

HONEST = ReferenceThresholds(mean=0.02, largest=1.0, surprise=5.0, rarest=27.0, drift=12.0)
"""Calibrated on llama.cpp with SmolLM2-135M in 8 bits (docs/benchmarks.md); other engines may need others. Of `rarest`:
all of 150,000 tokens below that probability are drawn less than once in three million times.
"""

Reference = Callable[[Receipt, Content], ReferencePass]
"""A pass along the output, on the auditor's own weights. Raises CannotReplay, Interrupted."""

Profiles = Callable[[str], EngineProfile | None]
"""The entry of the log that a receipt's `profile_cid` names; None if it is missing."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was served beside what the plain engine says: the first position that differs (None: no difference), both
    tokens (None: the output has ended) and its log-probabilities of them (None: it does not say). Where it gives two
    answers, it is not `stable`, and a difference says nothing of speculation.
    """

    position: int | None = None
    served: int | None = None
    plain: int | None = None
    served_logprob: float | None = None
    plain_logprob: float | None = None
    stable: bool = True


class Plain(Protocol):
    """The engine that has served, with speculation off. Its calls raise CannotReplay where it refuses, and EngineAway
    where it is away: the receipt is examined later then.
    """

    def name(self) -> str:
        """The engine and its version now, as receipts call it."""
        ...

    def held_against(self, receipt: Receipt, content: Content) -> Comparison:
        """The same request again, and a second time where the first differs."""
        ...


@dataclass(frozen=True, slots=True)
class ForeignPlan:
    """Another engine than kolm's, whose receipts are examined: by asking `plain`, where it speculates not.
    `thresholds` of reference passes hold where the log has announced none.
    """

    plain: Plain | None = None
    thresholds: ReferenceThresholds = HONEST


class ForeignJudge:
    """Judges receipts of another engine by the checks that this auditor has the means for."""

    def __init__(
        self,
        profiles: Profiles,
        plain: Plain | None,
        reference: Reference | None,
        thresholds: Callable[[], ReferenceThresholds] = lambda: HONEST,
        drifts: Callable[[str], Drift | None] = lambda _: None,
        *,
        of_engines: bool = True,
    ) -> None:
        """`drifts`: what the outputs of a profile, by its identifier, have shown together so far. `of_engines`: whether
        the auditor was set up for another engine; else its weights are held only against receipts that name them.
        """
        self._profiles, self._plain, self._reference, self._thresholds = profiles, plain, reference, thresholds
        self._drifts, self._of_engines = drifts, of_engines

    def judge(self, receipt: Receipt, content: Content) -> tuple[Finding, ...]:
        """The findings on a receipt that is signed, with content that it commits to: one for each check that could be
        made, the worst last; UNCHECKED where none could, out of reach where another auditor has the means. Raises
        Interrupted, KolmError.
        """
        if receipt.output.stream_digest != token_digest(content.output_token_ids):
            return (Finding(UNCHECKED, reason="the digest is not that of the receipted tokens", tampered=True),)
        profile = self._profiles(receipt.profile_cid)
        if profile is None or (profile.name, profile.base_cid) != (receipt.engine, receipt.base_cid):
            return (Finding(UNCHECKED, reason="the log holds no profile of this engine and base that it names"),)
        if not content.output_token_ids:
            return (Finding(UNCHECKED, reason="nothing had been emitted"),)
        found: list[Finding] = []
        missing: list[str] = []
        out_of_reach = True
        for name, check in (("again", self._again), ("reference", self._referred)):
            try:
                found.append(check(receipt, content, profile))
            except CannotReplay as error:
                missing.append(f"no check {name}: {error}")
                out_of_reach &= isinstance(error, OutOfReach) or not self._of_engines
        if not found:
            return (Finding(UNCHECKED, reason="; ".join(missing), out_of_reach=out_of_reach),)
        found = [each.noting("; ".join(missing)) for each in found] if missing else found
        return tuple(sorted(found, key=lambda each: (each.outcome in ACCUSATIONS, each.outcome not in PASSES)))

    def _again(self, receipt: Receipt, content: Content, profile: EngineProfile) -> Finding:
        """The same request through the plain engine; a second time, if the first differs."""
        plain = self._plain
        if plain is None:
            raise OutOfReach("this auditor has no --plain-url to ask")
        if (name := plain.name()) != profile.name:
            message = f"the receipt is of {profile.name}, the engine is {name} now"
            raise (CannotReplay if name.partition("/")[0] == profile.engine else OutOfReach)(message)
        found, served = plain.held_against(receipt, content), len(content.output_token_ids)
        if found.position is None:
            return _asked(SAME, served)
        if not found.stable:
            reason = f"with speculation off, the engine differs from itself (here from position {found.position})"
            return _asked(UNSTABLE, found.position + 1, reason=reason)
        deviation = Deviation(
            found.position, found.plain, found.served,
            expected_logprob=found.plain_logprob, actual_logprob=found.served_logprob,
        )  # fmt: skip
        return _asked(DEVIATION, found.position + 1, deviation, _in_words(deviation))

    def _referred(self, receipt: Receipt, content: Content, profile: EngineProfile) -> Finding:
        if self._reference is None:
            raise OutOfReach("this auditor has no weights, --model")
        if not (profile.weights_checked or self._of_engines):
            raise OutOfReach(f"this auditor is not one of {profile.name}, --engine, and its weights may be others")
        found = self._reference(receipt, content)
        if profile.weights_checked and found.base_cid != profile.base_cid:
            raise OutOfReach(f"the weights here are {found.base_cid}, the receipt's {profile.base_cid}")
        thresholds = self._thresholds()
        if thresholds.missed is None:
            found = replace(found, missed=None)
        if thresholds.drift is not None:
            before = self._drifts(receipt.profile_cid) or Drift()
            found = replace(found, drift=before.after(found, len(content.output_token_ids)))
        problem = thresholds.exceeded(found)
        outcome = CONSISTENT if problem is None else INCONSISTENT
        return Finding(
            outcome, len(content.output_token_ids), reason=problem, verification=REFERENCE, replayed_by=AUDITOR,
            reference=found,
        )  # fmt: skip


def _asked(outcome: str, tokens: int, deviation: Deviation | None = None, reason: str | None = None) -> Finding:
    return Finding(outcome, tokens, deviation, reason, verification=AGAIN, replayed_by=ENGINE)


def _in_words(deviation: Deviation) -> str:
    tokens = {"speculation off": deviation.expected_token, "as served": deviation.actual_token}
    said = ", ".join(f"{'the end' if token is None else f'token {token}'} {how}" for how, token in tokens.items())
    return f"position {deviation.position}: {said}"
