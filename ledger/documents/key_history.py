"""The key that may sign at each index: the trusted keys, folded with the rotations that the log records.

A rotation at index i ends the old key's interval (it signs nothing after i) and begins the new key's (it signs nothing
before i). A verifier who trusts the old key trusts its successor from there on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import Document, open_document, payload_type, read_document
from ledger.errors import FormatError, SignatureError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys


@dataclass(frozen=True, slots=True)
class Rotation:
    """A key entry with `replaces`, and its index."""

    index: int
    role: str
    old: str
    new: PublicKey


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """The keys of every index that has been read. `rotations` are in the order of their indexes. `epochs` are spans of
    the log with the same keys, each with its first index.
    """

    epochs: tuple[tuple[int, TrustedKeys], ...]
    rotations: tuple[Rotation, ...] = ()

    @classmethod
    def of(cls, trusted: TrustedKeys) -> KeyHistory:
        """The history of a log without rotations."""
        return cls(((0, trusted),))

    def at(self, index: int) -> TrustedKeys:
        """The keys that may sign the entry at `index`; the log's keys may sign a checkpoint of `index` + 1 entries."""
        return self.epochs[bisect_right(self.epochs, index, key=lambda epoch: epoch[0]) - 1][1]

    def open(self, index: int, envelope: Envelope) -> Document:
        """`open_document` with the keys of `index`. Raises FormatError, SignatureError.

        A rotation is opened with its new key among the trusted keys: the other signature vouches for it.
        """
        trusted = self.at(index)
        if envelope.payload_type == payload_type("key"):
            trusted = _with_successor(trusted, read_document(envelope))
        try:
            return open_document(envelope, trusted, index)
        except SignatureError as error:
            self.check_not_replaced(index, (signature.key_id for signature in envelope.signatures))
            raise error from None

    def after(self, index: int, document: Document) -> KeyHistory:
        """The history after `document`, opened with `open`, at `index`. Raises FormatError for a key that was retired
        before.
        """
        if not isinstance(document, KeyEntry) or document.replaces is None:
            return self
        if any(rotation.old == document.public_key.key_id for rotation in self.rotations):
            raise FormatError("public_key", "was replaced by another key before and cannot come back")
        both = _with_successor(self.at(index), document)
        remaining = tuple(key for key in both.keys(document.role) if key.key_id != document.replaces)
        alone = _changed(both, document.role, remaining)
        rotation = Rotation(index, document.role, document.replaces, document.public_key)
        return KeyHistory((*self.epochs, (index, both), (index + 1, alone)), (*self.rotations, rotation))

    def following(self, key_entries: Iterable[tuple[int, bytes]]) -> KeyHistory:
        """The history after these envelopes, by index; invalid ones change nothing."""
        history = self
        for index, data in key_entries:
            with suppress(FormatError, SignatureError):
                history = history.after(index, history.open(index, Envelope.from_bytes(data)))
        return history

    def check_not_replaced(self, index: int, signers: Iterable[str], roles: Iterable[str] = ROLES) -> None:
        """Raises SignatureError if a key among `signers`, the key ids of the entry at `index`, was replaced in one of
        these roles by then.
        """
        earlier = (each for each in self.rotations if each.index < index and each.role in roles)
        replaced = {rotation.old: rotation.index for rotation in earlier}
        for key_id in signers:
            if key_id in replaced:
                raise SignatureError(f"is signed by {key_id}, which entry {replaced[key_id]} had replaced by then")

    def check_log_key(self, key: PublicKey, size: int) -> None:
        """Raises SignatureError if, by a rotation, `key` was not the log's key for a checkpoint of this size."""
        self.check_not_replaced(size - 1, [key.key_id])
        if any(rotation.new == key and rotation.index >= size for rotation in self.rotations):
            raise SignatureError(f"is signed by {key.key_id}, which a later entry only introduces")


def _with_successor(trusted: TrustedKeys, document: Document) -> TrustedKeys:
    if not isinstance(document, KeyEntry) or document.replaces is None:
        return trusted
    if document.public_key in trusted.keys(document.role):
        return trusted
    old = trusted.find(document.role, document.replaces)
    new = document.public_key if old is None else document.public_key.scoped(old.scope)
    return _changed(trusted, document.role, (*trusted.keys(document.role), new))


def _changed(trusted: TrustedKeys, role: str, keys: tuple[PublicKey, ...]) -> TrustedKeys:
    return replace(trusted, by_role={each: keys if each == role else trusted.keys(each) for each in ROLES})
