"""The key entry: puts on record, inside the log, which public key signs for which role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.fields import Fields
from ledger.keys import ROLES, PublicKey


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A `kolm.key.v1` document. Signed by the key itself or by any trusted key.

    It records trust and does not create it: the key must already be trusted for its role by configuration.
    """

    TYPE: ClassVar[str] = "kolm.key.v1"

    role: str
    public_key: PublicKey
    issued_at: str

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "role": self.role,
            "public_key": self.public_key.to_base64(),
            "issued_at": self.issued_at,
        }

    @classmethod
    def from_document(cls, document: object) -> KeyEntry:
        """The key entry that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        entry = cls(
            role=fields.choice("role", ROLES),
            public_key=PublicKey.from_base64(fields.read("public_key"), fields.path("public_key")),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return entry
