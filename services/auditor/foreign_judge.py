"""The examination of another engine's output by two checks: asking the same engine again with speculation off, and a
pass of kolm's own arithmetic along the output. Each check has a finding of its own, which is never EXACT.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from ledger.documents.audit import (
    ACCUSATIONS,
    AGAIN,
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
from services.auditor.examination import Compared, Finding, NotCompared
from services.generation.remote.dialects import About
from services.generation.remote.ending import unended

HONEST = ReferenceThresholds(mean=0.02, largest=1.0, surprise=5.0, rarest=27.0, drift=12.0)
"""Calibrated on llama.cpp with 8 and 4 bits a weight (docs/auditing.md); other engines may need others. `rarest`: in a
vocabulary of 150,000, all tokens that are 27 nats rare are together drawn less than once in three million draws.
"""
DRAWN = replace(HONEST, missed=0.02)
"""HONEST with a threshold for `missed`, for engines whose draws are known (`EngineProfile.draws_are_known`)."""

Reference = Callable[[Receipt, Content], ReferencePass]
"""A pass along the output, on the auditor's own weights. Raises CannotReplay, Interrupted."""

Profiles = Callable[[str], EngineProfile | None]
"""The engine profile in the log that a receipt's `profile_cid` names; None if it is missing."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The served output compared with the plain engine's: the first position that differs (None: no difference), both
    tokens (None: the output has ended) and the engine's log-probabilities of them (None: not reported). `unstable`: the
    reason why a difference proves nothing about speculation, such as two different answers of the plain engine.
    """

    position: int | None = None
    served: int | None = None
    plain: int | None = None
    served_logprob: float | None = None
    plain_logprob: float | None = None
    unstable: str | None = None


class Plain(Protocol):
    """The serving engine with speculation off. Its calls raise CannotReplay if it refuses, and EngineAway if it is
    away: then the receipt is examined later.
    """

    @property
    def engine(self) -> str:
        """The engine's name, such as vllm."""
        ...

    def about(self) -> About:
        """The engine's description of itself now."""
        ...

    def held_against(self, receipt: Receipt, content: Content, profile: EngineProfile) -> Comparison:
        """Send the same request again; if the answer differs, once more, and then as several concurrent copies."""
        ...


class ForeignJudge:
    """Judges receipts of another engine by the checks for which this auditor has the means."""

    def __init__(
        self,
        profiles: Profiles,
        plain: Plain | None,
        reference: Reference | None,
        thresholds: Callable[[], ReferenceThresholds] = lambda: HONEST,
        drifts: Callable[[str], Drift | None] = lambda _: None,
        *,
        ends: Callable[[], Collection[int]] = tuple,
        spelled: Callable[[Receipt, Content], str | None] = lambda *_: None,
        of_engines: bool = True,
    ) -> None:
        """`drifts`: the sums that outputs of a profile add to, by its identifier. `ends`: the ids with which the
        reference's model ends outputs. `spelled`: the text of an output's ids, None if the tokenizer is another one.
        `of_engines`: whether the auditor was set up for another engine; if not, it checks only receipts that name its
        weights.
        """
        self._spelled = spelled
        self._profiles, self._plain, self._reference, self._thresholds = profiles, plain, reference, thresholds
        self._drifts, self._ends, self._of_engines = drifts, ends, of_engines

    def judge(self, receipt: Receipt, content: Content) -> tuple[Finding, ...]:
        """The findings on a signed receipt with the content that it commits to: one for each possible check, the worst
        last; UNCHECKED if none is possible, out of reach if another auditor has the means. Raises Interrupted,
        KolmError.
        """
        if receipt.output.stream_digest != token_digest(content.output_token_ids):
            return (NotCompared(UNCHECKED, "the digest does not belong to the receipted tokens", tampered=True),)
        profile = self._profiles(receipt.profile_cid)
        if profile is None or (profile.name, profile.base_cid) != (receipt.engine, receipt.base_cid):
            return (NotCompared(UNCHECKED, "the log has no such profile of this engine and base"),)
        if not content.output_token_ids:
            return (NotCompared(UNCHECKED, "nothing had been emitted"),)
        found: list[Compared] = []
        missing: list[str] = []
        out_of_reach = True
        for name, check in (("again", self._again), ("reference", self._referred)):
            try:
                found.append(check(receipt, content, profile))
            except CannotReplay as error:
                missing.append(f"no check {name}: {error}")
                out_of_reach &= isinstance(error, OutOfReach) or not self._of_engines
        if not found:
            return (NotCompared(UNCHECKED, "; ".join(missing), out_of_reach=out_of_reach),)
        found = [each.noting("; ".join(missing)) for each in found] if missing else found
        return tuple(sorted(found, key=lambda each: (each.outcome in ACCUSATIONS, each.outcome not in PASSES)))

    def _again(self, receipt: Receipt, content: Content, profile: EngineProfile) -> Compared:
        """Send the request to the plain engine again, if that is the profile's engine."""
        plain = self._plain
        if plain is None:
            raise OutOfReach("this auditor has no plain engine: set --plain-url")
        if plain.engine != profile.engine:
            raise OutOfReach(f"the receipt is of {profile.name}, the engine is {plain.engine}")
        if (other := _changed(profile, plain.about())) is not None:
            raise CannotReplay(other)
        found, served = plain.held_against(receipt, content, profile), len(content.output_token_ids)
        if found.position is None:
            return _asked(SAME, served)
        if found.unstable is not None:
            reason = f"{found.unstable} (here from position {found.position})"
            return _asked(UNSTABLE, found.position + 1, reason=reason)
        deviation = Deviation(
            found.position, found.plain, found.served,
            expected_logprob=found.plain_logprob, actual_logprob=found.served_logprob,
        )  # fmt: skip
        return _asked(DEVIATION, found.position + 1, deviation, _in_words(deviation))

    def _referred(self, receipt: Receipt, content: Content, profile: EngineProfile) -> Compared:
        if self._reference is None:
            raise OutOfReach("this auditor has no weights: set --model")
        if not (profile.weights_checked or self._of_engines):
            raise OutOfReach(f"this auditor is not set up for {profile.name}, --engine; its weights may be others")
        found = self._reference(receipt, content)
        if profile.weights_checked and found.base_cid != profile.base_cid:
            raise OutOfReach(f"the weights here are {found.base_cid}, the receipt's {profile.base_cid}")
        thresholds = self._thresholds()
        if thresholds.missed is None or not profile.draws_are_known:
            found = replace(found, missed=None)
        if thresholds.drift is not None:
            before = self._drifts(receipt.profile_cid) or Drift()
            found = replace(found, drift=before.after(found, len(content.output_token_ids)))
        problem = thresholds.exceeded(found) or self._unended(receipt, content)
        outcome = CONSISTENT if problem is None else INCONSISTENT
        return Compared(outcome, len(content.output_token_ids), REFERENCE, reason=problem, reference=found)

    def _unended(self, receipt: Receipt, content: Content) -> str | None:
        """The reason why an output cannot have ended as the receipt states; None if it can."""
        output, ids = receipt.output, content.output_token_ids
        return unended(
            output.finish_reason, output.stop_reason, ids, receipt.sampling, self._ends(),
            lambda: self._spelled(receipt, content),
        )  # fmt: skip


def _changed(profile: EngineProfile, now: About) -> str | None:
    """The first difference between an engine and the profile, as a reason; None if there is none."""
    if now.speculates:
        return "the engine behind --plain-url speculates"
    was = {"version": profile.version, "model": profile.model, **profile.flags}
    found = {"version": now.version, "model": now.model, **{name.lower(): flag for name, flag in now.flags.items()}}
    for name, value in found.items():
        if was.get(name) != value:
            return f"{name}: the receipt's profile has {was.get(name)}, the engine {value} now"
    return None


def _asked(outcome: str, tokens: int, deviation: Deviation | None = None, reason: str | None = None) -> Compared:
    return Compared(outcome, tokens, AGAIN, ENGINE, deviation, reason)


def _in_words(deviation: Deviation) -> str:
    expected, actual = (
        "the end" if token is None else f"token {token}" for token in (deviation.expected_token, deviation.actual_token)
    )
    return f"position {deviation.position}: {expected} with speculation off, {actual} as served"
