"""The documents of auditors: policies (which share is replayed, and by when), draws (which receipts), and verdicts.

A draw is an auditor's signature over a tree, which decides which receipts in it are replayed:

    receipt i is sampled  ⇔  SHA-256(seed ‖ i as u64 big-endian) < p · 2^256
    seed = SHA-256 of the draw's DSSE envelope in canonical form (one signature, by the auditor)

The seed cannot be computed without the auditor's key before the auditor has signed, and the signed document names a
tree that already holds i. p is the IEEE double of the policy, so p · 2^256 is exact.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, ClassVar

from msgspec import Meta
from msgspec.structs import replace

from ledger.encoding.document import (
    Cid,
    Count,
    Digest,
    Document,
    NotNegative,
    Number,
    Part,
    Positive,
    Reason,
    ReceiptId,
    Share,
    Time,
    TokenId,
    one_of,
    written,
)
from ledger.encoding.text_forms import parse_digest
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope

LONGEST_PROMISE_SECONDS = 366 * 86_400

EXACT = "EXACT"
DEVIATION = "DEVIATION"
UNREPLAYABLE = "UNREPLAYABLE"
SAME = "SAME"
UNSTABLE = "UNSTABLE"
CONSISTENT = "CONSISTENT"
INCONSISTENT = "INCONSISTENT"
UNCHECKED = "UNCHECKED"
OUTCOMES = (EXACT, DEVIATION, UNREPLAYABLE, SAME, UNSTABLE, CONSISTENT, INCONSISTENT, UNCHECKED)

OWN_OUTCOMES = (EXACT, DEVIATION, UNREPLAYABLE)
"""The outcomes of a replay on kolm's own arithmetic."""

PREFILL = "prefill"
DECODE = "decode"
AGAIN = "again"
REFERENCE = "reference"
VERIFICATIONS = (PREFILL, DECODE, AGAIN, REFERENCE)
OUTCOMES_BY = {
    None: (*OWN_OUTCOMES, UNCHECKED),
    PREFILL: OWN_OUTCOMES,
    DECODE: OWN_OUTCOMES,
    AGAIN: (SAME, DEVIATION, UNSTABLE),
    REFERENCE: (CONSISTENT, INCONSISTENT),
}
"""The outcomes of each verification. They differ in strength, and an outcome of one never replaces an outcome of
another.
"""

AUDITOR = "auditor"
SERVER = "server"
ENGINE = "engine"
REPLAYERS = (AUDITOR, SERVER, ENGINE)


PASSES = (EXACT, SAME, CONSISTENT)
"""Outcomes in favour of a receipt, each with the strength of its check: only EXACT means that no bit differs."""
ACCUSATIONS = (DEVIATION, INCONSISTENT)
NO_ANSWERS = (UNREPLAYABLE, UNSTABLE, UNCHECKED)
"""Outcomes that are neither an accusation nor a pass."""

SHORT = 64
"""The least number of tokens in the denominator of a mean: in a shorter output, one near tie would weigh too much."""

_MARGIN_RATE, _MARGIN_ALLOWED = 4.0, 0.007
_SURPRISE_RATE, _SURPRISE_ALLOWED = 2.0, 1.25
_MISSED_RATE, _MISSED_ALLOWED = 8.0, 0.003
"""Rates and allowances of `Drift`'s steps, calibrated like the thresholds (docs/auditing.md)."""


class ReferenceThresholds(Part, frozen=True):
    """The largest statistics of an honest output of another engine; beyond them, a reference pass finds INCONSISTENT.
    The members have the names of `ReferencePass`; `surprise` bounds both sides of zero, and a sampled output may have
    SAMPLED times `largest`. `drift` bounds each sum of `Drift`; None judges each output alone. `missed` is for a
    llama-server with known draws; None does not check them.
    """

    SAMPLED: ClassVar = 2.0
    """At temperature 0, a token is compared with a few likely tokens. The limits of top_k, top_p and min_p are among
    many unlikely tokens with the least certain logits, so an unlikely token may pass by a larger margin.
    """

    mean: NotNegative
    largest: NotNegative
    surprise: NotNegative
    rarest: NotNegative
    drift: NotNegative | None = None
    missed: NotNegative | None = None

    def exceeded(self, by: ReferencePass) -> str | None:
        """A description of the first statistic beyond its threshold; None if the output is consistent with the
        weights.
        """
        for name in ("mean", "largest", "surprise", "rarest", "missed"):
            value, most = getattr(by, name), getattr(self, name)
            if name == "largest" and by.rarest is not None:
                most *= self.SAMPLED
            if None not in (value, most) and abs(value) > most:
                return f"{name} is {value:.4g}, at most {most:g} is expected of an honest engine"
        if by.drift is not None and self.drift is not None and by.drift.largest > self.drift:
            return f"with the outputs before it, drift is {by.drift.largest:.4g}, more than {self.drift:g}"
        return None


class AuditPolicy(Document, tag="kolm.audit_policy.v1", frozen=True):
    """A `kolm.audit_policy.v1` document. Signed by a key of role `auditor`; in force until the next policy. `reference`
    has the thresholds of passes over other engines' outputs, if the auditor makes them. `halts_inconsistent`: an
    INCONSISTENT halts the output's method, as a DEVIATION does.

    A receipt after this entry is sampled with probability `rate` (0 to 1), and a sampled receipt gets its verdict
    `within_seconds` of its issue (or of the auditor's last document before it in the log if that is later: a receipt
    may have waited in a spool). A later policy does not apply to earlier receipts, so no promise is lowered in
    hindsight.
    """

    SIGNERS: ClassVar = ("auditor",)

    rate: Share
    within_seconds: Annotated[int, Meta(ge=1, le=LONGEST_PROMISE_SECONDS)]
    issued_at: Time
    reference: ReferenceThresholds | None = None
    halts_inconsistent: bool = False


class Draw(Document, tag="kolm.draw.v1", frozen=True):
    """A `kolm.draw.v1` document. Signed by one key of role `auditor`.

    Decides about the receipts below `tree_size` without an earlier draw. `root` is the root over the first `tree_size`
    entries (`sha256:<hex>`) as the auditor computed it: over another log the draw is void.
    """

    SIGNERS: ClassVar = ("auditor",)

    tree_size: Positive
    root: Digest
    issued_at: Time

    @property
    def root_hash(self) -> bytes:
        """The root's 32 bytes."""
        return parse_digest(self.root)


def draw_seed(envelope: Envelope) -> bytes:
    """The 32-byte seed of a draw, from its signed envelope."""
    return hashlib.sha256(envelope.to_bytes()).digest()


def is_sampled(seed: bytes, index: int, rate: float) -> bool:
    """Whether entry `index` is sampled at `rate` (0 to 1)."""
    drawn = int.from_bytes(hashlib.sha256(seed + index.to_bytes(8, "big")).digest(), "big")
    numerator, denominator = rate.as_integer_ratio()  # exact: a double is a fraction
    return drawn * denominator < numerator << 256


class Deviation(Part, frozen=True):
    """The first position (0 = first output token) where replay and receipt differ.

    `expected_token` is the replay's, `actual_token` the receipted one; null if that stream had ended before. Margins
    are best minus second best logit; null if unknown (a receipt keeps only its digest). Equal tokens mean that the
    logits' bits differed (`stream_digest`) although the text did not.
    """

    position: Count
    expected_token: TokenId | None
    actual_token: TokenId | None
    expected_margin: NotNegative | None = written(None)
    actual_margin: NotNegative | None = written(None)
    expected_logprob: Number | None = None
    actual_logprob: Number | None = None


class Drift(Part, frozen=True):
    """Cumulative sums over the outputs of another engine up to this output, which reveal what single outputs do not:
    they start at 0, take a step with each output, and never fall below 0 (CUSUM, E. S. Page, 1954).

    The exponential of an honest output's step has an expectation of 1 at most, so that on average a sum goes beyond h
    after exp(h) honest outputs at the earliest. `margin` sums margins, `rarer` and `likelier` sum `surprise` up and
    down, `missed` the distances of tokens from the draws of their seeds. The sums begin with the first verdict, and
    again after each INCONSISTENT.
    """

    margin: NotNegative = written(0.0)
    rarer: NotNegative = written(0.0)
    likelier: NotNegative = written(0.0)
    missed: NotNegative = 0.0

    @property
    def largest(self) -> float:
        return max(self.margin, self.rarer, self.likelier, self.missed)

    def after(self, found: ReferencePass, tokens: int) -> Drift:
        """The drift after one more output of `tokens` tokens."""
        counted, surprise = max(SHORT, tokens), found.surprise or 0.0
        steps = {"margin": _MARGIN_RATE * counted * (found.mean - _MARGIN_ALLOWED)}
        if found.surprise is not None:
            sides = {"rarer": surprise, "likelier": -surprise}
            steps |= {name: _SURPRISE_RATE * (side - _SURPRISE_ALLOWED) for name, side in sides.items()}
        if found.missed is not None:
            steps["missed"] = _MISSED_RATE * counted * (found.missed - _MISSED_ALLOWED)
        return replace(self, **{name: max(0.0, getattr(self, name) + step) for name, step in steps.items()})


class ReferencePass(Part, frozen=True):
    """The statistics of another engine's output from one pass of kolm's own arithmetic with the weights `base_cid`.

    A token's margin is the difference between the least logit that the receipt's parameters allow and the token's
    logit: at temperature 0 the least allowed logit is the largest logit, otherwise the last logit that top_k, top_p and
    min_p keep. It is 0 for a token that could be chosen. `mean` (over SHORT tokens at least) and `largest` are over the
    output, `differing` counts the tokens that could not be chosen.

    Of sampled outputs: `surprise` is the difference of the output's log-probability from its expectation in standard
    deviations, positive for rarer tokens; `rarest` is the largest negative log-probability of a token in nats.
    `missed`, of a llama-server: the mean over tokens (SHORT at least) of the distance, as a probability, between the
    number drawn from the request's seed and the numbers that give the token; None if it is not checked. `drift` has the
    sums over the outputs that this auditor has checked, of all profiles of one base that one key signed: another
    version or flag does not restart them. None if it does not sum.
    """

    base_cid: Cid
    mean: NotNegative
    largest: NotNegative
    differing: Count
    surprise: Number | None = None
    rarest: NotNegative | None = None
    missed: NotNegative | None = None
    drift: Drift | None = None


class Verdict(Document, tag="kolm.verdict.v1", frozen=True):
    """A `kolm.verdict.v1` document. Signed by a key of role `auditor`.

    DEVIATION carries `deviation` and nothing else does; UNREPLAYABLE carries `reason` and is never a pass.
    `off_seconds` is the time that decoding with speculation off took; null if nothing was decoded. `verification` names
    the method: `prefill` in passes over prompt and recorded output, `decode` token by token with speculation off. Both
    check every token and the stream digest. `replayed_by` names the engine: the `auditor`'s own, or a generation
    `server`, whose answer the auditor believed. Both are None, and not in the document, if nothing was computed; older
    documents lack them too.

    An output of another engine is never EXACT. `again` asks that `engine` once more with speculation off: SAME,
    DEVIATION, or UNSTABLE if it differs from itself or rounding explains the difference. `reference` is a pass of
    kolm's own arithmetic over the output, with its statistics in `reference`: CONSISTENT or INCONSISTENT with the
    weights. UNCHECKED has a reason.
    """

    SIGNERS: ClassVar = ("auditor",)

    receipt_id: ReceiptId
    receipt_index: Count
    outcome: Annotated[str, one_of(OUTCOMES)]
    profile_cid: Cid
    tokens_compared: Count
    replayed_at: Time
    deviation: Deviation | None = written(None)
    reason: Reason | None = written(None)
    off_seconds: NotNegative | None = written(None)
    verification: Annotated[str, one_of(VERIFICATIONS)] | None = None
    replayed_by: Annotated[str, one_of(REPLAYERS)] | None = None
    reference: ReferencePass | None = None

    @property
    def independent(self) -> bool:
        """Whether another engine than the audited server's computed the stream again, by the auditor's statement."""
        return self.replayed_by == AUDITOR

    def check(self) -> None:
        if (self.outcome == DEVIATION) != (self.deviation is not None):
            raise FormatError("deviation", f"expected an object if and only if outcome is {DEVIATION}")
        if self.outcome in (UNREPLAYABLE, UNCHECKED) and self.reason is None:
            raise FormatError("reason", f"expected text if outcome is {self.outcome}")
        if (self.verification is None) != (self.replayed_by is None):
            raise FormatError("verification", "expected together with replayed_by, or neither of the two")
        if self.outcome not in OUTCOMES_BY[self.verification]:
            raise FormatError("outcome", f"{self.outcome} is not an outcome of verification {self.verification}")
        if (self.verification == AGAIN) != (self.replayed_by == ENGINE):
            raise FormatError("replayed_by", f"expected {ENGINE} if and only if verification is {AGAIN}")
        if (self.verification == REFERENCE) != (self.reference is not None):
            raise FormatError("reference", f"expected an object if and only if verification is {REFERENCE}")
