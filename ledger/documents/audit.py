"""What auditors sign: how much they will replay and by when, which receipts that is, and what came out.

A draw is an auditor's signature over a tree, which decides which receipts in it are replayed:

    receipt i is sampled  ⇔  SHA-256(seed ‖ i as u64 big-endian) < p · 2^256
    seed = SHA-256 of the draw's DSSE envelope in canonical form (one signature, by the auditor)

Nobody without the auditor's key can compute the seed before the auditor has signed, and the signed document names the
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
"""What a replay on kolm's own arithmetic finds."""

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
"""What each way of verifying can find. They differ in strength, and no outcome of one stands for another's."""

AUDITOR = "auditor"
SERVER = "server"
ENGINE = "engine"
REPLAYERS = (AUDITOR, SERVER, ENGINE)


PASSES = (EXACT, SAME, CONSISTENT)
"""Outcomes that speak for a receipt, each with the strength of its own check: only EXACT says that no bit differs."""
ACCUSATIONS = (DEVIATION, INCONSISTENT)
NO_ANSWERS = (UNREPLAYABLE, UNSTABLE, UNCHECKED)
"""Outcomes that accuse nobody and are not a pass."""

SHORT = 64
"""Tokens that an output counts as at least, where a mean is taken: a single near tie is much of a shorter one."""

_MARGIN_RATE, _MARGIN_ALLOWED = 4.0, 0.007
_SURPRISE_RATE, _SURPRISE_ALLOWED = 2.0, 1.25
_MISSED_RATE, _MISSED_ALLOWED = 8.0, 0.003
"""Steps of `Drift`: so much for what is above this. Calibrated as the thresholds are (docs/benchmarks.md)."""


class ReferenceThresholds(Part, frozen=True):
    """The most that an honest output of another engine may have, before a reference pass calls it INCONSISTENT. The
    members are those of `ReferencePass`; `surprise` bounds both sides of zero, and a sampled output may have SAMPLED
    times `largest`. `drift` bounds each sum of `Drift`; None judges each output alone. `missed` is for a llama-server
    whose draws are known; None asks nothing of them.
    """

    SAMPLED: ClassVar = 2.0
    """At temperature 0 a token is held against the few that are likely there. What top_k, top_p and min_p cut off ends
    among many unlikely ones, whose logits are the least certain, and one among that number gets in by more.
    """

    mean: NotNegative
    largest: NotNegative
    surprise: NotNegative
    rarest: NotNegative
    drift: NotNegative | None = None
    missed: NotNegative | None = None

    def exceeded(self, by: ReferencePass) -> str | None:
        """The first statistic that is beyond, in words; None where the output is consistent with the weights."""
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
    """A `kolm.audit_policy.v1` document. Signed by a key of role `auditor`; binds until the next one.

    `reference` are the thresholds of passes along other engines' outputs, where the auditor makes such.

    A receipt after this entry is sampled with probability `rate` (0 to 1), and a sampled one has its verdict
    `within_seconds` of its issue (of the auditor's last document before it in the log, where that is later: a receipt
    may have waited in a spool). A later policy leaves earlier receipts alone, so no promise is lowered in hindsight.
    """

    SIGNERS: ClassVar = ("auditor",)

    rate: Share
    within_seconds: Annotated[int, Meta(ge=1, le=LONGEST_PROMISE_SECONDS)]
    issued_at: Time
    reference: ReferenceThresholds | None = None


class Draw(Document, tag="kolm.draw.v1", frozen=True):
    """A `kolm.draw.v1` document. Signed by one key of role `auditor`.

    Decides about the receipts below `tree_size` that no earlier draw has decided about. `root` is the root over the
    first `tree_size` entries (`sha256:<hex>`) as the auditor computed it: over another log the draw is void.
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
    """The 32-byte seed of a draw, from the envelope as it was signed."""
    return hashlib.sha256(envelope.to_bytes()).digest()


def is_sampled(seed: bytes, index: int, rate: float) -> bool:
    """Whether entry `index` is sampled at `rate` (0 to 1)."""
    drawn = int.from_bytes(hashlib.sha256(seed + index.to_bytes(8, "big")).digest(), "big")
    numerator, denominator = rate.as_integer_ratio()  # exact: a double is a fraction
    return drawn * denominator < numerator << 256


class Deviation(Part, frozen=True):
    """The first position (0 = first output token) where replay and receipt differ.

    `expected_token` is the replay's, `actual_token` the receipted one; null where that stream had already ended.
    Margins are best minus second best logit; null where unknown (a receipt keeps only its digest). Equal tokens mean
    that the logits' bits differed (`stream_digest`) although the text did not.
    """

    position: Count
    expected_token: TokenId | None
    actual_token: TokenId | None
    expected_margin: NotNegative | None = written(None)
    actual_margin: NotNegative | None = written(None)
    expected_logprob: Number | None = None
    actual_logprob: Number | None = None


class Drift(Part, frozen=True):
    """What the outputs of one engine profile show together, up to and with this one, that each alone does not: sums
    that start at 0, take a step with each output, and never fall below 0 (E. S. Page, 1954).

    The exponential of an honest output's step has an expectation of 1 at most, so that on average a sum goes beyond h
    after exp(h) honest outputs at the earliest. `margin` sums margins, `rarer` and `likelier` sum `surprise` up and
    down, `missed` what tokens are off the draws of their seeds. A new sum
    begins with the first verdict, and after each that is INCONSISTENT.
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
    """What one pass of kolm's own arithmetic, with the weights `base_cid`, says of another engine's output.

    A token's margin is how much smaller its logit is than the least that the receipt's parameters leave to choose from:
    at temperature 0 that is the largest one, otherwise the last that top_k, top_p and min_p keep. It is 0 for a token
    that could be chosen. `mean` (over SHORT tokens at least) and `largest` are over the output, `differing` counts the
    tokens that could not be chosen.

    Of sampled outputs: `surprise` is by how many standard deviations the output's log-probability is off the one to be
    expected, positive for rarer tokens; `rarest` the largest number of nats that a token's probability is below 1.
    `missed`, of a llama-server: the mean over tokens (SHORT at least) of how far, as a probability, the number that is
    drawn from the request's seed is from those that give the token; None where that is not asked.

    `drift` is what the profile's outputs that this auditor has passed along show together; None where it does not sum.
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
    `off_seconds` is the time that decoding with speculation off took; null where nothing was decoded.

    `verification` says how the stream was computed: `prefill` in passes over prompt and recorded output, `decode` token
    by token with speculation off. Both decide the same: every token and the stream digest. `replayed_by` says on whose
    engine: the `auditor`'s own, or a generation `server` that was asked, whose answer the auditor believed. Both are
    None, and not in the document, where nothing was computed; older documents lack them too.

    An output of another engine is never EXACT. `again` asks that `engine` once more with speculation off: SAME, or
    DEVIATION; or UNSTABLE, where it then differs from itself. `reference` is a pass of kolm's own arithmetic along the
    output, which `reference` describes: CONSISTENT or INCONSISTENT with the weights. UNCHECKED has a reason.
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
        """Whether somebody else than the audited server computed the stream again, as far as the auditor says."""
        return self.replayed_by == AUDITOR

    def check(self) -> None:
        if (self.outcome == DEVIATION) != (self.deviation is not None):
            raise FormatError("deviation", f"expected an object exactly where outcome is {DEVIATION}")
        if self.outcome in (UNREPLAYABLE, UNCHECKED) and self.reason is None:
            raise FormatError("reason", f"expected text where outcome is {self.outcome}")
        if (self.verification is None) != (self.replayed_by is None):
            raise FormatError("verification", "expected beside replayed_by, or neither of the two")
        if self.outcome not in OUTCOMES_BY[self.verification]:
            raise FormatError("outcome", f"{self.outcome} is nothing that verification {self.verification} can find")
        if (self.verification == AGAIN) != (self.replayed_by == ENGINE):
            raise FormatError("replayed_by", f"expected {ENGINE} exactly where verification is {AGAIN}")
        if (self.verification == REFERENCE) != (self.reference is not None):
            raise FormatError("reference", f"expected an object exactly where verification is {REFERENCE}")
