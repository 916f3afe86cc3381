"""The examination of one receipt: signature, content, replay, comparison token by token, and the finding."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

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

OPEN_ENDED = ("cancelled", "error")
"""Finish reasons that come from outside the stream: only the tokens emitted until then can be compared."""

ContentReader = Callable[[str], Content | None]
"""The content of a receipt by its id; None where it was never kept or has been erased."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The base to load, with the adapters (directories by name) that receipts may name.

    `context_length` in tokens, `cache_dtype` and `arithmetic` are those of the audited server where they are not its
    defaults. `threads` of a pass; None is as many as there are CPUs.
    """

    model: Path
    adapters: Mapping[str, Path] = field(default_factory=dict)
    context_length: int | None = None
    cache_dtype: str | None = None
    arithmetic: str | None = None
    threads: int | None = None

    def for_reference(self) -> EnginePlan:
        """The plan for outputs of another engine. No pass along them has to repeat a server's bits, and keys and values
        of a byte each would add a third to the margins that the thresholds were set by.
        """
        return replace(self, cache_dtype=self.cache_dtype or "bfloat16")


@dataclass(frozen=True, slots=True)
class Finding:
    """`tampered` marks bytes that are not what was signed: there is nothing to replay, and a person should look.
    `out_of_reach` marks a receipt that another auditor, which has its base or engine, may be able to check.

    `verification` and `replayed_by` are as in `Verdict`.
    """

    outcome: str
    tokens_compared: int = 0
    deviation: Deviation | None = None
    reason: str | None = None
    off_seconds: float | None = None
    tampered: bool = False
    verification: str | None = None
    replayed_by: str | None = None
    reference: ReferencePass | None = None
    out_of_reach: bool = False

    @classmethod
    def exact(cls, tokens_compared: int, off_seconds: float | None, reason: str | None = None) -> Finding:
        return cls(EXACT, tokens_compared, off_seconds=off_seconds, reason=reason)

    @classmethod
    def deviates(cls, deviation: Deviation, off_seconds: float | None, reason: str) -> Finding:
        return cls(DEVIATION, deviation.position + 1, deviation, reason, off_seconds)

    @classmethod
    def unreplayable(cls, reason: str, *, tampered: bool = False, out_of_reach: bool = False) -> Finding:
        return cls(UNREPLAYABLE, reason=reason, tampered=tampered, out_of_reach=out_of_reach)

    @property
    def passed(self) -> bool:
        """UNREPLAYABLE and UNCHECKED are not passes, nor is UNSTABLE."""
        return self.outcome in PASSES

    def noting(self, remark: str) -> Finding:
        """The same finding with a remark at the end of its reason."""
        return replace(self, reason=remark if self.reason is None else f"{self.reason}; {remark}")

    def computed(self, verification: str) -> Finding:
        """The same finding, computed in this way by the auditor's engine; only decoding says what decoding takes."""
        seconds = self.off_seconds if verification == DECODE else None
        return replace(self, verification=verification, replayed_by=AUDITOR, off_seconds=seconds)

    def verdict(self, receipt: Receipt, receipt_index: int, replayed_at: str) -> Verdict:
        """The document to sign."""
        return Verdict(
            receipt_id=receipt.receipt_id,
            receipt_index=receipt_index,
            outcome=self.outcome,
            profile_cid=receipt.profile_cid,
            tokens_compared=self.tokens_compared,
            replayed_at=replayed_at,
            deviation=self.deviation,
            reason=None if self.reason is None else self.reason[:2048],
            off_seconds=self.off_seconds,
            verification=self.verification,
            replayed_by=self.replayed_by,
            reference=self.reference,
        )


class Replayer(Protocol):
    """Computes a receipted request again on the auditor's own engine, one at a time.

    `ways` are those of `verdict.VERIFICATIONS` that it knows, the cheapest first; DECODE is always among them.
    """

    ways: tuple[str, ...]

    def replay(self, receipt: Receipt, content: Content, way: str = DECODE) -> Replayed:
        """The stream: by PREFILL along the recorded output, up to the first token that is not the recorded one; by
        DECODE all of it, with speculation off.

        Raises CannotReplay where this receipt has none, Interrupted.
        """
        ...


class OwnReplayer(Replayer, Protocol):
    """A replayer on the auditor's own weights, which also says what they make of another engine's output."""

    def refer(self, receipt: Receipt, content: Content) -> ReferencePass:
        """Raises CannotReplay, Interrupted."""
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
    """`max_output_tokens` of the replay: the emitted tokens, where the stream was cut off from outside.

    Otherwise 0, "as sampling says": the replay ends where decoding ends by itself, so an output that was cut short or
    goes on for too long differs.
    """
    return receipt.output.tokens if receipt.output.finish_reason in OPEN_ENDED else 0


def compare(receipt: Receipt, output: Sequence[int], replayed: Replayed) -> Finding:
    """`output` is what the receipt commits to; `replayed` the same request computed again."""
    deviation = _first_difference(output, replayed)
    if deviation is not None:
        return Finding.deviates(deviation, replayed.decode_seconds, _token_difference(deviation))
    if receipt.output.stream_digest != replayed.stream_digest:
        return _end_difference(output, replayed, "same tokens, another stream digest: logits differ in bits")
    claimed = receipt.output.finish_reason
    if claimed not in OPEN_ENDED and claimed != replayed.finish_reason:
        problem = f"the receipt ended by {claimed}, the replay by {replayed.finish_reason}"
        return _end_difference(output, replayed, problem)
    return Finding.exact(len(output), replayed.decode_seconds)


def misstated(receipt: Receipt, content: Content, replayed: Replayed) -> str | None:
    """What else the receipt says of an output whose stream is the replayed one, and is not so: in words, or None.

    Compared where the replay was computed in this process: its text, why it stopped, its least margin.
    """
    output, text = receipt.output, replayed.text
    if text is None:
        return None
    if output.text_commitment not in (None, commit_text(OUTPUT_TEXT_DOMAIN, content.output_salt, text)):
        return "the text that the receipt commits to is not that of its tokens"
    least = min(replayed.margins, default=math.inf)
    stated = {"stop_reason": replayed.stop_reason, "min_margin": least if math.isfinite(least) else None}
    wrong = [name for name, value in stated.items() if getattr(output, name) != value]
    return f"the receipt states another {wrong[0]} than the replay gives" if wrong else None


def _first_difference(output: Sequence[int], replayed: Replayed) -> Deviation | None:
    for position, (actual, expected) in enumerate(zip_longest(output, replayed.token_ids)):
        if actual != expected:
            return Deviation(position, expected, actual, expected_margin=_margin(replayed, position))
    return None


def _token_difference(deviation: Deviation) -> str:
    if deviation.expected_token is None:
        return f"the replay ended before position {deviation.position}"
    if deviation.actual_token is None:
        return f"the replay goes on at position {deviation.position}, where the receipted output ended"
    return (
        f"position {deviation.position}: token {deviation.expected_token} with speculation off, "
        f"token {deviation.actual_token} as served"
    )


def _end_difference(output: Sequence[int], replayed: Replayed, reason: str) -> Finding:
    """A difference that only the end of the stream shows is placed at its last token; where it began is unknown."""
    last = max(0, len(output) - 1)
    token = output[last] if output else None
    return Finding.deviates(Deviation(last, token, token, _margin(replayed, last)), replayed.decode_seconds, reason)


def _margin(replayed: Replayed, position: int) -> float | None:
    return replayed.margins[position] if position < len(replayed.margins) else None


class Judge:
    """Replays receipts one by one. Nothing is remembered between two of them."""

    def __init__(
        self, replayer: Replayer, decode_share: float = 0.0, chance: Callable[[], float] = random.random
    ) -> None:
        """`decode_share`: of receipts, 0 to 1, to decode token by token where the replayer knows a cheaper way; decided
        by `chance`, which draws from 0 to 1.
        """
        self._replayer = replayer
        self._decode_share = decode_share
        self._chance = chance

    def judge(self, receipt: Receipt, content: Content) -> Finding:
        """The finding on a receipt that is signed, with content that it commits to.

        Raises Interrupted.
        """
        if not content.output_token_ids:  # there is nothing to compute: the auditor compares by itself
            nothing = compare(receipt, (), _nothing(receipt)).noting("nothing had been emitted")
            return nothing.computed(PREFILL)
        try:
            return self._confirmed(receipt, content, self._chosen_way())
        except CannotReplay as error:
            return Finding.unreplayable(str(error), out_of_reach=isinstance(error, OutOfReach))

    def _chosen_way(self) -> str:
        return DECODE if self._chance() < self._decode_share else self._replayer.ways[0]

    def _confirmed(self, receipt: Receipt, content: Content, way: str) -> Finding:
        found = self._compared(receipt, content, way)
        if found.outcome != DEVIATION or way == DECODE:
            return found
        decoded = self._compared(receipt, content, DECODE)
        if decoded.outcome == DEVIATION:
            return decoded
        return Finding.unreplayable(
            f"the auditor's engine contradicts itself ({decoded.outcome} by decoding; by prefill: {found.reason}); "
            "`kolm doctor` probes it"
        )

    def _compared(self, receipt: Receipt, content: Content, way: str) -> Finding:
        replayed = self._replayer.replay(receipt, content, way)
        if replayed.profile_cid != receipt.profile_cid:
            raise OutOfReach(_another_profile(receipt.profile_cid, replayed.profile_cid))
        if _reached_limit(receipt, replayed):
            return Finding.unreplayable("the grammar of its structured_outputs reached a limit in the replay")
        found = compare(receipt, content.output_token_ids, replayed).computed(way)
        lie = misstated(receipt, content, replayed) if found.passed else None
        return found if lie is None else Finding.unreplayable(lie, tampered=True)


def _reached_limit(receipt: Receipt, replayed: Replayed) -> bool:
    """Whether a grammar's limit ended the replay. A lexer's earlier work decides when: the computation is the same."""
    return replayed.finish_reason == "error" != receipt.output.finish_reason and (
        receipt.sampling.structured_outputs is not None
    )


def _nothing(receipt: Receipt) -> Replayed:
    """The replay of an output without tokens, which asks nobody."""
    return Replayed((), receipt.output.finish_reason, StreamDigest().hexdigest(), receipt.profile_cid, 0.0, ())


def _another_profile(named: str, replayed: str) -> str:
    return f"the receipt names numerics profile {named}, the replay was on {replayed}"


class JudgeForeign(Protocol):
    """The interface of `services.auditor.foreign.ForeignJudge`."""

    def judge(self, receipt: Receipt, content: Content) -> tuple[Finding, ...]: ...


class Examiner:
    """Examines receipts one by one. Nothing is remembered between two of them."""

    def __init__(
        self,
        trust: TrustedKeys,
        contents: ContentReader,
        replayer: Replayer,
        decode_share: float = 0.0,
        chance: Callable[[], float] = random.random,
        foreign: JudgeForeign | None = None,
    ) -> None:
        """`decode_share` and `chance` are those of `Judge`; `foreign` judges receipts of other engines."""
        self._trust = trust
        self._contents = contents
        self._judge = Judge(replayer, decode_share, chance)
        self._foreign = foreign

    def examine(self, envelope: Envelope, erased: str | None = None) -> tuple[Finding, ...]:
        """The checks in order; the first that fails is the finding. `erased` says which entry erased the content.
        A receipt of another engine than kolm's is judged by `foreign`, with a finding for each of its checks.

        1. The receipt is signed by a key trusted for receipts.
        2. Its content is there.
        3. The content is what the receipt commits to.
        4. It is computed again on the numerics profile that it names: the bits of another one say nothing about it.
        5. That gives the same tokens and the same stream digest as with speculation off. A deviation that was found
           along the record is decoded before it is believed.

        A receipt that claims a speedup above its tokens per pass is told in the reason; it changes no outcome.
        Raises Interrupted, and KolmError where the ledger cannot be asked.
        """
        try:
            receipt = self._signed_receipt(envelope)
        except LedgerError as error:
            reason = f"the receipt is not what a trusted key signed: {error}"
            return (Finding.unreplayable(reason, tampered=True),)
        nothing = UNREPLAYABLE if receipt.engine is None else UNCHECKED
        content = self._contents(receipt.receipt_id)
        if content is None:
            return (Finding(nothing, reason=erased or "the ledger keeps no content of it"),)
        try:
            content.check_against(receipt)
        except FormatError as error:
            reason = f"the content is not what the receipt commits to: {error}"
            return (Finding(nothing, reason=reason, tampered=True),)
        if receipt.engine is None:
            found: tuple[Finding, ...] = (self._judge.judge(receipt, content),)
        elif self._foreign is None:
            reason = f"this auditor has no means to check {receipt.engine}"
            found = (Finding(UNCHECKED, reason=reason, out_of_reach=True),)
        else:
            found = self._foreign.judge(receipt, content)
        claimed = receipt.overclaim
        return found if claimed is None else tuple(each.noting(f"the receipt {claimed}") for each in found)

    def _signed_receipt(self, envelope: Envelope) -> Receipt:
        document = open_document(envelope, self._trust)
        if not isinstance(document, Receipt):
            raise FormatError("payloadType", "expected a receipt")
        return document
