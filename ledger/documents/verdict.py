"""The verdict: the result of computing a receipted request again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.documents.sampling import MAX_TOKEN_ID
from ledger.encoding.fields import Fields
from ledger.errors import FormatError

EXACT = "EXACT"
DEVIATION = "DEVIATION"
UNREPLAYABLE = "UNREPLAYABLE"
OUTCOMES = (EXACT, DEVIATION, UNREPLAYABLE)

PREFILL = "prefill"
DECODE = "decode"
VERIFICATIONS = (PREFILL, DECODE)

AUDITOR = "auditor"
SERVER = "server"
REPLAYERS = (AUDITOR, SERVER)


@dataclass(frozen=True, slots=True)
class Deviation:
    """The first position (0 = first output token) where replay and receipt differ.

    `expected_token` is the replay's, `actual_token` the receipted one; null where that stream had already ended.
    Margins are best minus second best logit; null where unknown (a receipt keeps only its digest). Equal tokens mean
    that the logits' bits differed (`stream_digest`) although the text did not.
    """

    position: int
    expected_token: int | None
    actual_token: int | None
    expected_margin: float | None = None
    actual_margin: float | None = None

    def to_document(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "expected_token": self.expected_token,
            "actual_token": self.actual_token,
            "expected_margin": self.expected_margin,
            "actual_margin": self.actual_margin,
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Deviation:
        deviation = cls(
            position=fields.integer("position"),
            expected_token=fields.optional("expected_token", lambda name: fields.integer(name, 0, MAX_TOKEN_ID)),
            actual_token=fields.optional("actual_token", lambda name: fields.integer(name, 0, MAX_TOKEN_ID)),
            expected_margin=fields.optional("expected_margin", lambda name: fields.number(name, 0.0)),
            actual_margin=fields.optional("actual_margin", lambda name: fields.number(name, 0.0)),
        )
        fields.close()
        return deviation


@dataclass(frozen=True, slots=True)
class Verdict:
    """A `kolm.verdict.v1` document. Signed by a key of role `auditor`.

    DEVIATION carries `deviation` and nothing else does; UNREPLAYABLE carries `reason` and is never a pass.
    `off_seconds` is the time that decoding with speculation off took; null where nothing was decoded.

    `verification` says how the stream was computed: `prefill` in passes over prompt and recorded output, `decode` token
    by token with speculation off. Both decide the same: every token and the stream digest. `replayed_by` says on whose
    engine: the `auditor`'s own, or a generation `server` that was asked, whose answer the auditor believed. Both are
    None, and not in the document, where nothing was computed; older documents lack them too.
    """

    TYPE: ClassVar[str] = "kolm.verdict.v1"

    receipt_id: str
    receipt_index: int
    outcome: str
    profile_cid: str
    tokens_compared: int
    replayed_at: str
    deviation: Deviation | None = None
    reason: str | None = None
    off_seconds: float | None = None
    verification: str | None = None
    replayed_by: str | None = None

    @property
    def independent(self) -> bool:
        """Whether somebody else than the audited server computed the stream again, as far as the auditor says."""
        return self.replayed_by == AUDITOR

    def to_document(self) -> dict[str, Any]:
        named = {"verification": self.verification, "replayed_by": self.replayed_by}
        return {name: value for name, value in named.items() if value is not None} | {
            "type": self.TYPE,
            "receipt_id": self.receipt_id,
            "receipt_index": self.receipt_index,
            "outcome": self.outcome,
            "profile_cid": self.profile_cid,
            "tokens_compared": self.tokens_compared,
            "deviation": None if self.deviation is None else self.deviation.to_document(),
            "reason": self.reason,
            "off_seconds": self.off_seconds,
            "replayed_at": self.replayed_at,
        }

    @classmethod
    def from_document(cls, document: object) -> Verdict:
        """The verdict that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        verdict = cls(
            receipt_id=fields.receipt_id("receipt_id"),
            receipt_index=fields.integer("receipt_index"),
            outcome=fields.choice("outcome", OUTCOMES),
            profile_cid=fields.cid("profile_cid"),
            tokens_compared=fields.integer("tokens_compared"),
            deviation=fields.optional("deviation", lambda name: Deviation.from_fields(fields.part(name))),
            reason=fields.optional("reason", lambda name: fields.text(name, longest=2048)),
            off_seconds=fields.optional("off_seconds", lambda name: fields.number(name, 0.0)),
            verification=_named(fields, "verification", VERIFICATIONS),
            replayed_by=_named(fields, "replayed_by", REPLAYERS),
            replayed_at=fields.time("replayed_at"),
        )
        fields.close()
        _check(verdict)
        return verdict


def _named(fields: Fields, name: str, known: tuple[str, ...]) -> str | None:
    return fields.choice(name, known) if fields.has(name) else None


def _check(verdict: Verdict) -> None:
    if (verdict.outcome == DEVIATION) != (verdict.deviation is not None):
        raise FormatError("deviation", f"expected an object exactly where outcome is {DEVIATION}")
    if verdict.outcome == UNREPLAYABLE and verdict.reason is None:
        raise FormatError("reason", f"expected text where outcome is {UNREPLAYABLE}")
    if (verdict.verification is None) != (verdict.replayed_by is None):
        raise FormatError("verification", "expected beside replayed_by, or neither of the two")
