"""The finding of an examination: a verdict before it is signed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ledger.documents.receipt import Receipt
from ledger.documents.verdict import DECODE, DEVIATION, EXACT, UNREPLAYABLE, Deviation, Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """`tampered` marks bytes that are not what was signed: there is nothing to replay, and somebody should look.

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

    @classmethod
    def exact(cls, tokens_compared: int, off_seconds: float | None, reason: str | None = None) -> Finding:
        return cls(EXACT, tokens_compared, off_seconds=off_seconds, reason=reason)

    @classmethod
    def deviates(cls, deviation: Deviation, off_seconds: float | None, reason: str) -> Finding:
        return cls(DEVIATION, deviation.position + 1, deviation, reason, off_seconds)

    @classmethod
    def unreplayable(cls, reason: str, *, tampered: bool = False) -> Finding:
        return cls(UNREPLAYABLE, reason=reason, tampered=tampered)

    @property
    def passed(self) -> bool:
        """UNREPLAYABLE is not a pass."""
        return self.outcome == EXACT

    def noting(self, remark: str) -> Finding:
        """The same finding with a remark at the end of its reason."""
        return replace(self, reason=remark if self.reason is None else f"{self.reason}; {remark}")

    def computed(self, verification: str, replayed_by: str) -> Finding:
        """The same finding, computed in this way by that engine; only decoding says what decoding takes."""
        seconds = self.off_seconds if verification == DECODE else None
        return replace(self, verification=verification, replayed_by=replayed_by, off_seconds=seconds)

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
        )
