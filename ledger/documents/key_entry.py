"""The key entry: puts on record, inside the log, which public key signs for which role, and which one it replaces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.encoding.fields import Fields
from ledger.errors import FormatError
from ledger.keys.ed25519 import ROLES, PublicKey

_KEY_ID = re.compile("ed25519:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A `kolm.key.v1` document. Signed by the key itself or by any trusted key.

    It records trust and does not create it: the key must already be trusted for its role by configuration.
    With `replaces`, the id of an earlier key of the role, it is a rotation: signed by the new key and by the
    old one (or, if that is lost, by as many operators as a resume takes), it ends the old key's interval and
    begins the new one's (`key_history`).
    """

    TYPE: ClassVar[str] = "kolm.key.v1"

    role: str
    public_key: PublicKey
    issued_at: str
    replaces: str | None = None

    def to_document(self) -> dict[str, Any]:
        document = {
            "type": self.TYPE,
            "role": self.role,
            "public_key": self.public_key.to_base64(),
            "issued_at": self.issued_at,
        }
        return document if self.replaces is None else document | {"replaces": self.replaces}

    @classmethod
    def from_document(cls, document: object) -> KeyEntry:
        """The key entry that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        entry = cls(
            role=fields.choice("role", ROLES),
            public_key=PublicKey.from_base64(fields.read("public_key"), fields.path("public_key")),
            issued_at=fields.time("issued_at"),
            replaces=_key_id(fields) if fields.has("replaces") else None,
        )
        fields.close()
        if entry.replaces == entry.public_key.key_id:
            raise FormatError("replaces", "a key cannot replace itself")
        return entry


def _key_id(fields: Fields) -> str:
    value = fields.read("replaces")
    if not isinstance(value, str) or _KEY_ID.fullmatch(value) is None:
        raise FormatError(fields.path("replaces"), "expected ed25519:<64 lowercase hex digits>")
    return value
