"""Transparent statements (RFC 9943): an entry of the log in a COSE_Sign1, with a COSE Receipt (RFC 9942) of the log.

The payload is the entry's bytes: canonical JSON with the receipt as its issuer signed it. They are also the leaf, so
the statement and its COSE Receipt have one subject without a further rule (ADR 0066).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ledger.errors import FormatError, ProofError, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.signer import Signer
from ledger.statements import cose
from ledger.tree.checkpoint import LARGEST_SIZE, Checkpoint
from ledger.tree.merkle import leaf_hash, proven_root, verify_inclusion

CONTENT_TYPE = "application/vnd.kolm.entry.v1+json"

_RECEIPTS, _STRUCTURE, _PROOFS = 394, 395, 396  # header parameters of RFC 9942
_RFC9162_SHA256, _INCLUSION = 1, -1
_SIGNATURE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Place:
    """An entry's bytes, its index, and its inclusion proof in the tree of `tree`."""

    entry: bytes
    index: int
    hashes: tuple[bytes, ...]
    tree: Checkpoint

    def check(self) -> None:
        """Raises ProofError."""
        verify_inclusion(leaf_hash(self.entry), self.index, self.tree.size, self.hashes, self.tree.root)


@dataclass(frozen=True, slots=True)
class Statement:
    """A parsed transparent statement: an entry, its issuer's signature, and the logs' receipts."""

    protected: bytes
    entry: bytes
    signature: bytes
    receipts: tuple[bytes, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> Statement:
        """Read a statement. It proves nothing: check `issuer` and `prove_cose_receipt`. Raises FormatError."""
        read = cose.decode_message(data)
        match read.unprotected:
            case {394: [*receipts]} if len(read.unprotected) == 1 and all(isinstance(each, bytes) for each in receipts):
                pass
            case _:
                raise FormatError("statement", "expected COSE Receipts (394) in the unprotected header")
        if read.payload is None or not receipts:
            raise FormatError("statement", "expected an entry as the payload, and a COSE Receipt")
        return cls(read.protected, read.payload, read.signature, tuple(receipts))

    def issuer(self, receipt_id: str, keys: Iterable[PublicKey]) -> PublicKey:
        """The key among `keys` that has signed the statement. Raises SignatureError."""
        for key in keys:
            if self.protected == _statement_header(key.key_id, receipt_id):
                key.verify(cose.to_be_signed(self.protected, self.entry), self.signature)
                return key
        raise SignatureError("no trusted key has signed the statement")


@dataclass(frozen=True, slots=True)
class ProvenPlace:
    """A tree of a log, by a key of the log, that holds an entry."""

    origin: str
    index: int
    size: int
    log_key: PublicKey


def prove_cose_receipt(
    data: bytes, entry: bytes, receipt_id: str, keys_of: Callable[[str], Iterable[PublicKey]]
) -> ProvenPlace:
    """The tree that a log has signed, by a key that `keys_of` has for its name, and the entry's place in it.

    Raises FormatError, ProofError, SignatureError.
    """
    receipt = cose.decode_message(data)
    match receipt.unprotected:
        case {396: {-1: [bytes() as encoded]}} if len(receipt.unprotected) == 1 and receipt.payload is None:
            proof = cose.decode(encoded)
        case _:
            raise FormatError("COSE Receipt", "expected one inclusion proof (396, -1) and a detached payload")
    match proof:
        case [int() as size, int() as index, [*hashes]] if all(isinstance(each, bytes) for each in hashes):
            pass
        case _:
            raise FormatError("COSE Receipt", "expected tree size, index and hashes as its proof")
    if isinstance(size, bool) or isinstance(index, bool) or not 0 <= index < size <= LARGEST_SIZE:
        raise FormatError("COSE Receipt", "expected a tree size of 1 to 2^63 - 1, and an index below it")
    match cose.decode(receipt.protected):
        case {15: {1: str() as origin}}:
            pass
        case _:
            raise FormatError("COSE Receipt", "expected the name of a log (15, 1) in the protected header")
    root = proven_root(leaf_hash(entry), index, size, hashes)
    for key in keys_of(origin):
        if receipt.protected == _receipt_header(key, origin, receipt_id):
            key.verify(cose.to_be_signed(receipt.protected, root), receipt.signature)
            return ProvenPlace(origin, index, size, key)
    raise SignatureError(f"the COSE Receipt is not about this receipt by a trusted key of the log {origin}")


def subject(receipt_id: str) -> str:
    """The subject of the statement and of its COSE Receipt, as a URI."""
    return f"urn:uuid:{receipt_id}"


def cose_receipt(place: Place, receipt_id: str, log: Signer) -> bytes:
    """The log's COSE Receipt of an entry. Raises ProofError. It signs only the root of a tree of which the log has
    signed a checkpoint.
    """
    place.check()
    protected = _receipt_header(log.public, place.tree.origin, receipt_id)
    return _receipt(place, protected, cose.sign(protected, place.tree.root, log))


def check_cose_receipt(data: bytes, place: Place, receipt_id: str, logs: Iterable[PublicKey]) -> None:
    """Raises ProofError unless `data` is the COSE Receipt of this place, signed by one of `logs`, SignatureError.

    Untrusted CBOR is not parsed: the expected deterministic bytes are made and compared.
    """
    place.check()
    signature = data[-_SIGNATURE_BYTES:]
    for key in logs:
        protected = _receipt_header(key, place.tree.origin, receipt_id)
        if _receipt(place, protected, signature) == data:
            return key.verify(cose.to_be_signed(protected, place.tree.root), signature)
    raise ProofError("is not the COSE Receipt of this entry by a trusted key of the log")


def transparent_statement(entry: bytes, receipt_id: str, issuer: Signer, receipts: Sequence[bytes]) -> bytes:
    """The statement of `issuer` about an entry, with COSE Receipts in its unprotected header."""
    protected = _statement_header(issuer.key_id, receipt_id)
    unprotected: dict[int, Any] = {_RECEIPTS: list(receipts)}
    return cose.message(protected, unprotected, entry, cose.sign(protected, entry, issuer))


def _statement_header(key_id: str, receipt_id: str) -> bytes:
    return cose.protected_header(key_id, key_id, subject(receipt_id), {cose.CONTENT_TYPE: CONTENT_TYPE})


def _receipt_header(log: PublicKey, origin: str, receipt_id: str) -> bytes:
    return cose.protected_header(log.key_id, origin, subject(receipt_id), {_STRUCTURE: _RFC9162_SHA256})


def _receipt(place: Place, protected: bytes, signature: bytes) -> bytes:
    proof = cose.encode([place.tree.size, place.index, list(place.hashes)])
    return cose.message(protected, {_PROOFS: {_INCLUSION: [proof]}}, None, signature)
