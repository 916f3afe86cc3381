"""The erasure: a signed statement that the content of a receipt is deleted, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.encoding.fields import Fields


@dataclass(frozen=True, slots=True)
class Erasure:
    """A `kolm.erasure.v1` document, signed by a key of role `operator`, or, where the receipt's tenant has asked for it
    by a credential of its own, of role `log`; names the receipt at `receipt_index`.

    The store removes the receipt's token ids and salts in the transaction that appends this. The receipt itself stays:
    without the salts, its commitments say nothing about prompt and output.
    """

    TYPE: ClassVar[str] = "kolm.erasure.v1"

    receipt_id: str
    receipt_index: int
    reason: str
    issued_at: str

    @classmethod
    def asked_for(cls, receipt_id: str, receipt_index: int, tenant: str, issued_at: str) -> Erasure:
        """The document that the log signs when the receipt's tenant asks."""
        return cls(receipt_id, receipt_index, f"asked for by the tenant {tenant}", issued_at)

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "receipt_id": self.receipt_id,
            "receipt_index": self.receipt_index,
            "reason": self.reason,
            "issued_at": self.issued_at,
        }

    @classmethod
    def from_document(cls, document: object) -> Erasure:
        """The erasure that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        erasure = cls(
            receipt_id=fields.receipt_id("receipt_id"),
            receipt_index=fields.integer("receipt_index"),
            reason=fields.text("reason", longest=2048),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return erasure
