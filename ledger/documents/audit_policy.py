"""The audit policy: an auditor's promise about the receipts that follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.encoding.fields import Fields

LONGEST_PROMISE_SECONDS = 366 * 86_400


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """A `kolm.audit_policy.v1` document. Signed by a key of role `auditor`; binds until the next one.

    A receipt after this entry is sampled with probability `rate` (0 to 1), and a sampled one has its verdict
    `within_seconds` of its issue (of the auditor's last document before it in the log, where that is later: a receipt
    may have waited in a spool). A later policy leaves earlier receipts alone, so no promise is lowered in hindsight.
    """

    TYPE: ClassVar[str] = "kolm.audit_policy.v1"

    rate: float
    within_seconds: int
    issued_at: str

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "rate": self.rate,
            "within_seconds": self.within_seconds,
            "issued_at": self.issued_at,
        }

    @classmethod
    def from_document(cls, document: object) -> AuditPolicy:
        """The policy that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        policy = cls(
            rate=fields.number("rate", 0.0, 1.0),
            within_seconds=fields.integer("within_seconds", 1, LONGEST_PROMISE_SECONDS),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return policy
