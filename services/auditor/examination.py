"""The examination of one receipt: signature, content, replay, comparison token by token, and the finding."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar, Protocol

from ledger.documents.audit import (
    AUDITOR,
    DECODE,
    DEVIATION,
    EXACT,
    PASSES,
    PREFILL,
    UNCHECKED,
    UNREPLAYABLE,
    Deviation,
    ReferencePass,
    Verdict,
)
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document
from ledger.encoding.commitment import OUTPUT_TEXT_DOMAIN, commit_text
from ledger.encoding.stream_digest import StreamDigest
from ledger.errors import FormatError, LedgerError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from services.auditor.audit_error import CannotReplay, OutOfReach
from services.client.errors import DataLoss

OPEN_ENDED = ("cancelled", "error")
"""Finish reasons that decoding does not decide: only the tokens emitted until then can be compared."""

ContentReader = Callable[[str], Content | None]
"""The content of a receipt by its id; None if it was never kept or has been erased."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The base to load, with the adapters (directories by name) that receipts may name.

    `context_length` in tokens, `cache_dtype` and `arithmetic` are settings of the audited server; None is its default.
    `threads` of a pass; None is one for each CPU. `packed_bytes`: the limit of packed weights on disk; 0 keeps none.
    """

    model: Path
    adapters: Mapping[str, Path] = field(default_factory=dict)
    context_length: int | None = None
    cache_dtype: str | None = None
    arithmetic: str | None = None
    threads: int | None = None
    packed_bytes: int = 0

    def for_reference(self) -> EnginePlan:
        """The plan for passes along outputs of another engine. They need not repeat a server's bits, and an int8 cache
        would add a third to the margins from which the thresholds were derived.
        """
        return replace(self, cache_dtype=self.cache_dtype or "bfloat16")


@dataclass(frozen=True, slots=True)
class Compared:
    """The finding of a check that compared tokens; its members are members of `Verdict`."""

    outcome: str
    tokens_compared: int
    verification: str
    replayed_by: str = AUDITOR
    deviation: Deviation | None = None
    reason: str | None = None
    off_seconds: float | None = None
    reference: ReferencePass | None = None
    tampered: ClassVar[bool] = False
    out_of_reach: ClassVar[bool] = False

    @property
    def passed(self) -> bool:
        return self.outcome in PASSES

    def noting(self, remark: str) -> Compared:
        """This finding with a remark at the end of its reason."""
        return replace(self, reason=remark if self.reason is None else f"{self.reason}; {remark}")


@dataclass(frozen=True, slots=True)
class NotCompared:
    """The finding if nothing could be compared; not a passed check. UNREPLAYABLE, or UNCHECKED for another engine.

    `tampered` marks evidence of a forged or false receipt, which a person should inspect. `out_of_reach` marks a
    receipt that another auditor, with its base or engine, may be able to check.
    """

    outcome: str
    reason: str
    tampered: bool = False
    out_of_reach: bool = False
    passed: ClassVar[bool] = False
    tokens_compared: ClassVar[int] = 0
    verification: ClassVar[None] = None
    replayed_by: ClassVar[None] = None
    deviation: ClassVar[None] = None
    off_seconds: ClassVar[None] = None
    reference: ClassVar[None] = None

    def noting(self, remark: str) -> NotCompared:
        """This finding with a remark at the end of its reason."""
        return replace(self, reason=f"{self.reason}; {remark}")


Finding = Compared | NotCompared


def verdict_of(finding: Finding, receipt: Receipt, receipt_index: int, replayed_at: str) -> Verdict:
    """The document to sign."""
    return Verdict(
        receipt_id=receipt.receipt_id,
        receipt_index=receipt_index,
        outcome=finding.outcome,
        profile_cid=receipt.profile_cid,
        tokens_compared=finding.tokens_compared,
        replayed_at=replayed_at,
        deviation=finding.deviation,
        reason=None if finding.reason is None else finding.reason[:2048],
        off_seconds=finding.off_seconds,
        verification=finding.verification,
        replayed_by=finding.replayed_by,
        reference=finding.reference,
    )


class Replayer(Protocol):
    """Computes a receipted request again on the auditor's own engine, one at a time.

    `ways` are the `ledger.documents.audit.VERIFICATIONS` that it knows, the cheapest first; DECODE is among them.
    """

    ways: tuple[str, ...]

    def replay(self, receipt: Receipt, content: Content, way: str = DECODE) -> Replayed:
        """Compute the stream again: by PREFILL along the recorded output, up to the first token that differs from it;
        by DECODE all of it, with speculation off.

        Raises CannotReplay if this receipt cannot be replayed here, EngineAway if it may be later, Interrupted.
        """
        ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """The tokens of a replay. `margins` are the best minus the second-best logit of the model at each position."""

    token_ids: tuple[int, ...]
    finish_reason: str
    stream_digest: str
    profile_cid: str
    decode_seconds: float
    margins: tuple[float, ...]
    text: str | None = None
    stop_reason: str | int | None = None


def replay_limit(receipt: Receipt) -> int:
    """The most tokens of the replay: the number of emitted tokens if the stream was cut off from outside, otherwise 0.

    0 adds no limit to the request's: the replay ends where decoding ends by itself, so that an output that is too short
    or too long differs.
    """
    return receipt.output.tokens if receipt.output.finish_reason in OPEN_ENDED else 0


def compare(receipt: Receipt, output: Sequence[int], replayed: Replayed, way: str = DECODE) -> Compared:
    """Compare `output`, to which the receipt commits, with `replayed`, its replay by `way`."""
    seconds = replayed.decode_seconds if way == DECODE else None  # the time of a prefill is not comparable
    deviation, reason = _difference(receipt, output, replayed)
    if deviation is None:
        return Compared(EXACT, len(output), way, off_seconds=seconds)
    return Compared(DEVIATION, deviation.position + 1, way, AUDITOR, deviation, reason, seconds)


def _difference(receipt: Receipt, output: Sequence[int], replayed: Replayed) -> tuple[Deviation | None, str | None]:
    """The first difference, and its description; None and None if there is none. A difference that only the end of the
    stream shows is placed at its last token: its true place is unknown.
    """
    for position, (actual, expected) in enumerate(zip_longest(output, replayed.token_ids)):
        if actual != expected:
            deviation = Deviation(position, expected, actual, expected_margin=_margin(replayed, position))
            return deviation, _token_difference(deviation)
    claimed = receipt.output.finish_reason
    if receipt.output.stream_digest != replayed.stream_digest:
        reason = "same tokens, another stream digest: logits differ in bits"
    elif claimed not in OPEN_ENDED and claimed != replayed.finish_reason:
        reason = f"the receipt ended by {claimed}, the replay by {replayed.finish_reason}"
    else:
        return None, None
    last = max(0, len(output) - 1)
    token = output[last] if output else None
    return Deviation(last, token, token, _margin(replayed, last)), reason


def misstated(receipt: Receipt, content: Content, replayed: Replayed) -> str | None:
    """A description of the receipt's first false statement about an output whose stream matches; None if there is none.

    The text, the stop reason and the least margin are checked, unless the replay has no text: if its tokenizer is not
    the receipt's.
    """
    output, text = receipt.output, replayed.text
    if text is None:
        return None
    if output.text_commitment not in (None, commit_text(OUTPUT_TEXT_DOMAIN, content.output_salt, text)):
        return "the receipt commits to a text that its tokens do not have"
    least = min(replayed.margins, default=math.inf)
    stated = {"stop_reason": replayed.stop_reason, "min_margin": least if math.isfinite(least) else None}
    wrong = [name for name, value in stated.items() if getattr(output, name) != value]
    return f"the receipt states another {wrong[0]} than the replay gives" if wrong else None


def _token_difference(deviation: Deviation) -> str:
    if deviation.expected_token is None:
        return f"the replay ended before position {deviation.position}"
    if deviation.actual_token is None:
        return f"the receipted output ended before position {deviation.position}, the replay goes on"
    return (
        f"position {deviation.position}: token {deviation.expected_token} with speculation off, "
        f"token {deviation.actual_token} as served"
    )


def _margin(replayed: Replayed, position: int) -> float | None:
    return replayed.margins[position] if position < len(replayed.margins) else None


class Judge:
    """Replays receipts one by one, without state between them."""

    def __init__(
        self, replayer: Replayer, decode_share: float = 0.0, chance: Callable[[], float] = random.random
    ) -> None:
        """`decode_share` is the share of receipts, 0 to 1, to decode token by token although the replayer knows a
        cheaper way; `chance` draws from 0 to 1.
        """
        self._replayer = replayer
        self._decode_share = decode_share
        self._chance = chance

    def judge(self, receipt: Receipt, content: Content) -> Finding:
        """The finding on a receipt that is signed, with content that it commits to.

        Raises Interrupted, EngineAway.
        """
        if not content.output_token_ids and receipt.output.finish_reason in OPEN_ENDED:  # needs no replay
            return _judged(receipt, content, _nothing(receipt), PREFILL).noting("nothing had been emitted")
        try:
            return self._confirmed(receipt, content, self._chosen_way())
        except CannotReplay as error:
            return NotCompared(UNREPLAYABLE, str(error), out_of_reach=isinstance(error, OutOfReach))

    def _chosen_way(self) -> str:
        return DECODE if self._chance() < self._decode_share else self._replayer.ways[0]

    def _confirmed(self, receipt: Receipt, content: Content, way: str) -> Finding:
        found = self._compared(receipt, content, way)
        if found.outcome != DEVIATION or way == DECODE:
            return found
        decoded = self._compared(receipt, content, DECODE)
        if decoded.outcome == DEVIATION:
            return decoded
        reason = (
            f"the auditor's engine contradicts itself ({decoded.outcome} by decoding; by prefill: {found.reason}); "
            "`kolm doctor` probes it"
        )
        return NotCompared(UNREPLAYABLE, reason)

    def _compared(self, receipt: Receipt, content: Content, way: str) -> Finding:
        replayed = self._replayer.replay(receipt, content, way)
        if replayed.profile_cid != receipt.profile_cid:
            named, used = receipt.profile_cid, replayed.profile_cid
            raise OutOfReach(f"the receipt names numerics profile {named}, the replay was on {used}")
        if _reached_limit(receipt, replayed):
            return NotCompared(UNREPLAYABLE, "the grammar of its structured_outputs reached a limit in the replay")
        return _judged(receipt, content, replayed, way)


def _judged(receipt: Receipt, content: Content, replayed: Replayed, way: str) -> Finding:
    found = compare(receipt, content.output_token_ids, replayed, way)
    lie = misstated(receipt, content, replayed) if found.passed else None
    return found if lie is None else NotCompared(UNREPLAYABLE, lie, tampered=True)


def _reached_limit(receipt: Receipt, replayed: Replayed) -> bool:
    """Whether a limit of the grammar library ended the replay, but not the served output."""
    return replayed.finish_reason == "error" != receipt.output.finish_reason and (
        receipt.sampling.structured_outputs is not None
    )


def _nothing(receipt: Receipt) -> Replayed:
    """The replay of an output that was cut off before its first token, which needs no engine."""
    return Replayed((), receipt.output.finish_reason, StreamDigest().hexdigest(), receipt.profile_cid, 0.0, (), "")


class JudgeForeign(Protocol):
    """Judges receipts of another engine; `ForeignJudge` is the implementation."""

    def judge(self, receipt: Receipt, content: Content) -> tuple[Finding, ...]: ...


class Examiner:
    """Examines receipts one by one, without state between them."""

    def __init__(
        self,
        trust: TrustedKeys,
        contents: ContentReader,
        replayer: Replayer,
        decode_share: float = 0.0,
        chance: Callable[[], float] = random.random,
        foreign: JudgeForeign | None = None,
    ) -> None:
        """`decode_share` and `chance` are parameters of `Judge`; `foreign` judges receipts of other engines."""
        self._trust = trust
        self._contents = contents
        self._judge = Judge(replayer, decode_share, chance)
        self._foreign = foreign

    def examine(self, envelope: Envelope, erased: str | None = None) -> tuple[Finding, ...]:
        """The finding of the first check that fails, or of the last. `erased` names the entry that erased the content.
        A receipt of another engine than kolm's is judged by `foreign`, with a finding for each of its checks.

        1. The receipt is signed by a key trusted for receipts.
        2. Its content exists.
        3. The receipt commits to the content.
        4. It is computed again on the numerics profile that it names: bits of another profile are no evidence.
        5. The replay gives the receipted tokens and stream digest with speculation off. A deviation by PREFILL counts
           only if DECODE confirms it.

        If the receipt claims an impossible speedup, the reason names it; the outcome does not change.
        Raises Interrupted, and KolmError if the ledger cannot be asked.
        """
        try:
            receipt = self._signed_receipt(envelope)
        except LedgerError as error:
            reason = f"no trusted key signed the receipt: {error}"
            return (NotCompared(UNREPLAYABLE, reason, tampered=True),)
        nothing = UNREPLAYABLE if receipt.engine is None else UNCHECKED
        try:
            content = self._contents(receipt.receipt_id)
        except DataLoss as error:
            if error.reason != "CONTENT_DAMAGED":
                raise
            return (NotCompared(nothing, error.message),)
        if content is None:
            return (NotCompared(nothing, erased or "the ledger keeps no content of it"),)
        try:
            content.check_against(receipt)
        except FormatError as error:
            reason = f"the receipt commits to another content: {error}"
            return (NotCompared(nothing, reason, tampered=True),)
        if receipt.engine is None:
            found: tuple[Finding, ...] = (self._judge.judge(receipt, content),)
        elif self._foreign is None:
            reason = f"this auditor has no means to check {receipt.engine}"
            found = (NotCompared(UNCHECKED, reason, out_of_reach=True),)
        else:
            found = self._foreign.judge(receipt, content)
        claimed = receipt.overclaim
        return found if claimed is None else tuple(each.noting(f"the receipt {claimed}") for each in found)

    def _signed_receipt(self, envelope: Envelope) -> Receipt:
        document = open_document(envelope, self._trust)
        if not isinstance(document, Receipt):
            raise FormatError("payloadType", "expected a receipt")
        return document
