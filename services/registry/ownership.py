"""Whose a name is, and whose a head: those of the publisher who came first, and of the keys that replaced his."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledger.documents.draft_head_publication import DraftHeadPublication
from ledger.documents.signed_document import read_document
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from services.registry.catalogue import PUBLICATION, CataloguedHead, Signed
from services.registry.errors import NameTaken, NotThePublisher
from services.registry.log import Log


@dataclass(frozen=True, slots=True)
class Signer:
    """The signers of a document: the keys' ids, and the publisher's name where it gives one."""

    keys: frozenset[str]
    name: str | None = None

    @classmethod
    def of(cls, envelope: bytes) -> Signer:
        read = Envelope.from_bytes(envelope)
        document = read_document(read)
        name = document.publisher if isinstance(document, DraftHeadPublication) else None
        return cls(frozenset(signature.key_id for signature in read.signatures), name)

    def __str__(self) -> str:
        keys = ", ".join(sorted(self.keys))
        return keys if self.name is None else f"{self.name} ({keys})"


def check_name(first: Signed | None, document: Signed, log: Log) -> None:
    """Raises NameTaken where the name's first publication is somebody else's, Unavailable."""
    if first is None:
        return
    owner, signer = Signer.of(first.envelope), Signer.of(document.envelope)
    if not _same(owner, signer, log):
        raise NameTaken(document.key, str(owner), str(signer))


def check_withdrawal(head: CataloguedHead, envelope: bytes, trusted: TrustedKeys, log: Log) -> None:
    """Raises NotThePublisher unless the head's first publisher, or an operator, has signed; Unavailable."""
    owner, signer = Signer.of(head.of_kind(PUBLICATION)[0].envelope), Signer.of(envelope)
    by_operator = any(trusted.find("operator", key) is not None for key in signer.keys)
    if not by_operator and not _same(owner, signer, log):
        raise NotThePublisher(head.row.head_cid, str(owner), str(signer))


def _same(owner: Signer, signer: Signer, log: Log) -> bool:
    """Whether a key of both is one, or a later one by rotations that the log records."""
    return bool(owner.keys & signer.keys) or bool(_successors(owner.keys, log.publisher_rotations()) & signer.keys)


def _successors(keys: frozenset[str], rotations: Sequence[tuple[str, str]]) -> frozenset[str]:
    for old, new in rotations:  # in the order of the log
        if old in keys:
            keys |= {new}
    return keys
