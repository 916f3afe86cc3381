"""The key entry: it records in the log which public key signs for which role, and which key it replaces."""

from __future__ import annotations

from typing import Annotated, ClassVar

from ledger.encoding.document import Document, Time, form, one_of
from ledger.errors import FormatError
from ledger.keys.ed25519 import ROLES, PublicKey

_KeyId = Annotated[str, form("ed25519:[0-9a-f]{64}", "ed25519:<64 lowercase hex digits>")]


class KeyEntry(Document, tag="kolm.key.v1", frozen=True):
    """A `kolm.key.v1` document. Signed by the key itself or by any trusted key.

    It records trust and does not create it: the key must already be trusted for its role by configuration. With
    `replaces`, the id of an earlier key of the role, it is a rotation: signed by the new key and by the old key (or, if
    that is lost, by as many operators as a resume needs), it ends the old key's interval and begins the new key's
    (`key_history`).
    """

    SIGNERS: ClassVar = ROLES

    role: Annotated[str, one_of(ROLES)]
    public_key: PublicKey
    issued_at: Time
    replaces: _KeyId | None = None

    def check(self) -> None:
        if self.replaces == self.public_key.key_id:
            raise FormatError("replaces", "a key cannot replace itself")
