"""Publication and withdrawal of a draft head: the publisher's signed statement that it may, or may
no longer, be loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ledger.documents.named_file import checked_name
from ledger.encoding.fields import Fields


@dataclass(frozen=True, slots=True)
class DraftHeadPublication:
    """A `kolm.head_publication.v1` document. Signed by a key of role `publisher`; gives a head a name.

    `manifest_cid` identifies the head, `base_cid` is its manifest's subject, `publisher` is the name of
    the signer, for people.
    """

    TYPE: ClassVar[str] = "kolm.head_publication.v1"

    manifest_cid: str
    name: str
    base_cid: str
    publisher: str
    issued_at: str

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "manifest_cid": self.manifest_cid,
            "name": self.name,
            "base_cid": self.base_cid,
            "publisher": self.publisher,
            "issued_at": self.issued_at,
        }

    @classmethod
    def from_document(cls, document: object) -> DraftHeadPublication:
        """The publication that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        publication = cls(
            manifest_cid=fields.cid("manifest_cid"),
            name=checked_name(fields.read("name"), fields.path("name")),
            base_cid=fields.cid("base_cid"),
            publisher=fields.text("publisher", longest=128),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return publication


@dataclass(frozen=True, slots=True)
class DraftHeadWithdrawal:
    """A `kolm.head_withdrawal.v1` document. Signed by a `publisher` or an `operator`; final, under every name.

    A head that was withdrawn is never loaded again, not even after another publication: publish a better one.
    """

    TYPE: ClassVar[str] = "kolm.head_withdrawal.v1"

    manifest_cid: str
    reason: str
    issued_at: str

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "manifest_cid": self.manifest_cid,
            "reason": self.reason,
            "issued_at": self.issued_at,
        }

    @classmethod
    def from_document(cls, document: object) -> DraftHeadWithdrawal:
        """The withdrawal that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        withdrawal = cls(
            manifest_cid=fields.cid("manifest_cid"),
            reason=fields.text("reason", longest=2048),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return withdrawal
