"""Answers of a ledger server, as frozen values. `ledger.audit.log_verification` checks the signed bytes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ledger.documents.audit import Verdict
    from ledger.documents.content import Content
    from ledger.documents.receipt import Receipt
    from ledger.keys.envelope import Envelope
    from ledger.tree.entry import Entry

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class InclusionProof:
    """Sibling hashes from the leaf up (RFC 6962 section 2.1.1)."""

    index: int
    tree_size: int
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ProvenEntry:
    """An inclusion proof with the hashes to check it; `checkpoint` is the newest one."""

    inclusion_proof: InclusionProof
    leaf_hash: bytes
    root_hash: bytes
    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class CoseReceipt:
    """A COSE Receipt (RFC 9942) over a receipt's entry, and the same proof under `checkpoint`, a signed note."""

    cose_receipt: bytes
    entry: bytes
    checkpoint: bytes
    inclusion_proof: InclusionProof


@dataclass(frozen=True, slots=True)
class ConsistencyProof:
    """The proof that the newer tree only appended to the older one (RFC 6962 section 2.1.2), with both roots."""

    first_tree_size: int
    second_tree_size: int
    hashes: tuple[bytes, ...]
    first_root_hash: bytes
    second_root_hash: bytes
    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """The place of an envelope in the log, with its proof; `checkpoint` is a signed note whose tree holds the entry."""

    index: int
    checkpoint: bytes
    inclusion_proof: InclusionProof
    halt_epoch: int


@dataclass(frozen=True)
class LogEntry:
    """One leaf: its canonical bytes, which the leaf hash is over, and the members that are read from them.

    `checkpoint` is a signed note and `inclusion_proof` the proof under it; both only if one entry was asked for.
    """

    entry: bytes
    checkpoint: bytes = b""
    inclusion_proof: InclusionProof | None = None

    @cached_property
    def leaf(self) -> Entry:
        """Raises FormatError, as the other properties do."""
        from ledger.tree.entry import Entry

        return Entry.from_bytes(self.entry)

    @property
    def index(self) -> int:
        return self.leaf.index

    @property
    def envelope(self) -> Envelope:
        return self.leaf.envelope

    @property
    def kind(self) -> str:
        """A name of `signed_document.KINDS`, or `UNKNOWN` for a kind of a later version."""
        from ledger.documents.signed_document import kind_of, read_document

        return kind_of(read_document(self.envelope))


@dataclass(frozen=True)
class ReceiptEntry:
    """A listed receipt. `outcome` is EXACT, DEVIATION, UNREPLAYABLE, or None before a replay.

    Index and envelope make the entry that a proof is over.
    """

    index: int
    envelope: bytes
    outcome: str | None

    @cached_property
    def document(self) -> Receipt:
        """The signed document; its signature is not checked here. Raises FormatError, ProofError."""
        from ledger.documents.receipt import Receipt

        return document_of_kind(self.envelope, Receipt, self.index)

    @property
    def receipt_id(self) -> str:
        return self.document.receipt_id

    @property
    def entry(self) -> Entry:
        """Raises FormatError."""
        from ledger.keys.envelope import Envelope
        from ledger.tree.entry import Entry

        return Entry(self.index, Envelope.from_bytes(self.envelope))


@dataclass(frozen=True, slots=True)
class ReceiptPage:
    """One page of a list with its proof: `hashes` is a multi-proof in the tree of `checkpoint`, a signed note.

    In a complete list the page covers the indexes [start, end); `others` are its entries that do not match.
    """

    receipts: tuple[ReceiptEntry, ...]
    checkpoint: bytes
    tree_size: int
    hashes: tuple[bytes, ...]
    start: int | None = None
    end: int | None = None
    others: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class VerdictEntry:
    """A listed verdict."""

    index: int
    envelope: bytes

    @cached_property
    def document(self) -> Verdict:
        """The signed document; its signature is not checked here. Raises FormatError, ProofError."""
        from ledger.documents.audit import Verdict

        return document_of_kind(self.envelope, Verdict, self.index)


def document_of_kind(envelope: bytes, kind: type[_Kind], index: int) -> _Kind:
    """The document in an envelope that a server sent as this entry. Raises FormatError, ProofError for another kind."""
    from ledger.documents.signed_document import read_document
    from ledger.errors import ProofError
    from ledger.keys.envelope import Envelope

    document = read_document(Envelope.from_bytes(envelope))
    if not isinstance(document, kind):
        raise ProofError(f"entry {index} was sent as a {kind.__name__.lower()} and is not one")
    return document


@dataclass(frozen=True, slots=True)
class VerdictPage:
    """One page of a list of verdicts; `next_page_token` is empty on the last."""

    verdicts: tuple[VerdictEntry, ...]
    next_page_token: str


@dataclass(frozen=True, slots=True)
class ReceiptDetails:
    """A receipt with the verdicts on it, and its content if it was asked for and is not erased.

    `content_state` is KEPT, ERASED (by the entry `erasure_index`) or NEVER_GIVEN.
    `checkpoint` is a signed note and `inclusion_proof` the proof of the receipt's entry under it.
    """

    receipt: ReceiptEntry
    content: Content | None
    verdicts: tuple[VerdictEntry, ...]
    content_state: str
    erasure_index: int | None = None
    checkpoint: bytes = b""
    inclusion_proof: InclusionProof | None = None


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A witness's cosignature of a checkpoint."""

    witness: str
    signed_at: datetime


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """A tree head; `note` is the signed note with its cosignatures, from which the server reads the other fields.

    `witnessed`: the cosignatures satisfy the policy of the server; a verifier applies its own.
    """

    note: bytes
    tree_size: int
    root_hash: bytes
    cosignatures: tuple[Cosignature, ...] = ()
    witnessed: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a halt; any head if `head_cid` is None."""

    base_cid: str
    method: str
    head_cid: str | None


@dataclass(frozen=True, slots=True)
class Halt:
    """An open halt."""

    scope: Scope
    halt_index: int
    verdict_index: int
    reason: str


@dataclass(frozen=True, slots=True)
class HaltState:
    """Open halts, oldest first, and the number of halts so far, after `tree_size` entries."""

    epoch: int
    halts: tuple[Halt, ...]
    tree_size: int
