"""The contract of a store, which the sequencer and the readers use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ledger.documents.audit import Verdict
from ledger.documents.content import Content
from ledger.documents.erasure import Expiry, Retention
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import References
from ledger.documents.signed_document import Document, kind_of, read_document
from ledger.encoding.text_forms import parse_digest
from ledger.log.receipt_filter import ReceiptFilter
from ledger.tree.entry import Entry
from ledger.tree.tile import Tile

Row = Mapping[str, Any]
SEGMENT = 2048
"""The number of receipts in a segment of an index."""


@dataclass(frozen=True, slots=True)
class Record:
    """One entry to be written: its bytes and their hash, its digest and document for the indexes, and its content
    (`content_seal.packed`).
    """

    index: int
    entry: bytes
    leaf: bytes
    envelope_digest: bytes
    document: Document
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one transaction: records with dense indexes from the current size on, and the tiles they change."""

    records: tuple[Record, ...]
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True)
class ReceiptRow:
    """One listed receipt: its searchable columns, entry bytes, and the outcome of its latest verdict."""

    index: int
    receipt_id: str
    tenant: str
    request_id: str
    base_cid: str
    head_cid: str | None
    adapter_cid: str | None
    profile_cid: str
    method: str
    issued_at: str
    entry: bytes
    outcome: str | None


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One listed verdict."""

    index: int
    receipt_id: str
    receipt_index: int
    outcome: str
    entry: bytes


class Log(Protocol):
    """The entries, the tree over them, and its signed heads. The index follows from it."""

    def size(self) -> int:
        """The number of entries; their indexes are 0 to size - 1. Raises ChainError if the indexes have a gap."""
        ...

    def latest_checkpoint(self) -> bytes | None:
        """The recorded checkpoint with the greatest size, None before the first."""
        ...

    def record_checkpoint(self, size: int, note: bytes) -> None:
        """Keep the signed checkpoint over the first `size` entries. Recording the same bytes again changes nothing."""
        ...

    def entry(self, index: int) -> bytes:
        """The bytes of one entry. Raises NotFound."""
        ...

    def entries(self, start: int, limit: int) -> Sequence[bytes]:
        """The bytes of up to `limit` entries from `start` on, in order."""
        ...

    def tile(self, level: int, number: int) -> bytes:
        """The hashes of a tile (TileReader). Raises NotFound."""
        ...


class Index(References, Protocol):
    """Queries by more than an index, and the answers to `reference_rules`. All its rows follow from the log."""

    def entries_of(self, kinds: Iterable[str], start: int = 0) -> Sequence[tuple[int, bytes]]:
        """Index and bytes of all entries of some kinds (names of `signed_document.KINDS`) from `start` on, in order. A
        poll passes the index after its last entry.
        """
        ...

    def about(self, start: int, end: int) -> Iterable[int]:
        """The indexes of verdicts on receipts in [start, end), and of erasures of these."""
        ...

    def has_signed(self, key_id: str) -> bool:
        """Whether a signature of an entry names this key. Looks at every entry: for rotations."""
        ...

    def indexes_of_envelopes(self, digests: Sequence[bytes]) -> Mapping[bytes, int]:
        """The indexes of envelopes by the SHA-256 of their canonical bytes, without receipts and missing envelopes. At
        most 1,000 in a call.
        """
        ...

    def indexes_of_receipts(self, receipt_ids: Sequence[str]) -> Mapping[str, int]:
        """The indexes of receipts by id, without missing ones. At most 1,000 in a call."""
        ...

    def receipts(self, narrow: ReceiptFilter, after: int, limit: int) -> Sequence[ReceiptRow]:
        """At most `limit` receipts with an index greater than `after` (-1 for the first page), in index order.

        Raises FormatError for an invalid commitment in the filter.
        """
        ...

    def verdicts(
        self, receipt_id: str | None, after: int, limit: int, outcome: str | None = None, *, newest_first: bool = False
    ) -> Sequence[VerdictRow]:
        """At most `limit` verdicts (of a receipt or all, of an outcome or any) after an index, in index order; with
        `newest_first` below it, in falling order.
        """
        ...


class Vault(Protocol):
    """Contents of receipts until they are erased, and the entries that erased them. They do not follow from the log."""

    def expired(self, expiry: Expiry, limit: int | None) -> Sequence[int]:
        """The indexes of up to `limit` receipts (None: all) that an expiry covers and that have content."""
        ...

    def content(self, receipt_index: int) -> Content | None:
        """The content of a receipt, None if none was given or it was erased. Raises ContentDamaged."""
        ...

    def has_content(self, receipt_index: int) -> bool:
        """Whether there is a content, which is not opened: it may be damaged, or its key out of reach for now."""
        ...

    def erased_by(self, receipt_index: int) -> int | None:
        """The index of the first entry that erased a receipt's content: an erasure, or an expiry if there was content.
        None if it was not erased. One look-up, in constant time.
        """
        ...


class EntryStore(Log, Index, Vault, Protocol):
    """An append-only store of entries with tiles, checkpoints and erasable content: log, index and vault in one
    transaction.

    Consistency: `commit` is all or nothing, and every read that starts after it returned sees the batch. Durability:
    once `commit` and `record_checkpoint` have returned, their rows survive a crash of the process and of the machine.
    Concurrency: one writing thread in one process (opening a second writer raises StoreLocked); reads from any thread.
    Immutability: an entry or checkpoint, once written, cannot be changed or removed through the store. Errors: NotFound
    as documented, StoreError for every failure; after a StoreError from a write, only a read shows whether it happened.
    """

    def commit(self, batch: Batch) -> None:
        """Append a batch whose first index is `size()`. Raises StoreError, also for another first index.

        An erasure in the batch destroys the content of its receipt: salts and token ids are gone when the erasure is
        written, and their bytes are overwritten, if the database can, before `record_checkpoint` returns.
        """
        ...

    def probe(self) -> None:
        """Write durably without a change, and finish erasures. Raises StoreError if the database takes no writes."""
        ...

    def check_held(self) -> None:
        """Raises StoreReplaced if a file is not the opened one any more, StoreLocked if another process writes,
        StoreError if the database does not answer. Each write checks this too, before and after.
        """
        ...

    def close(self) -> None:
        """Release files and locks. Closing twice changes nothing."""
        ...


def entries_from(store: EntryStore, start: int = 0, page: int = 256) -> Iterator[bytes]:
    """Stream the entries from `start` to the end, with one page in memory."""
    while entries := store.entries(start, page):
        yield from entries
        start += len(entries)


def retentions_of(store: EntryStore) -> list[tuple[int, Retention]]:
    """`reference_rules.References.retentions` from the entries. Raises StoreError, FormatError."""
    read = ((index, read_document(Entry.from_bytes(data).envelope)) for index, data in store.entries_of(("retention",)))
    return [(index, document) for index, document in read if isinstance(document, Retention)]


def leaf_row(index: int, entry: bytes, envelope_digest: bytes, document: Document, chain: bytes) -> dict[str, Any]:
    """The row of table `leaves`; `chain` is the running hash with this entry."""
    name = kind_of(document)
    return {"index": index, "kind": name, "entry": entry, "envelope_digest": envelope_digest, "chain": chain}


def index_rows(index: int, document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    """Tables and rows, other than the leaf's, that follow from a document."""
    if isinstance(document, Receipt):
        yield "receipts", _receipt_row(index, document)
    if isinstance(document, Verdict):
        yield "verdicts", _verdict_row(index, document)


def indexable(text: str) -> str:
    """Text in an index column. PostgreSQL's text has no U+0000, and one odd name must not fail a batch."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _receipt_row(index: int, receipt: Receipt) -> dict[str, Any]:
    return {
        "index": index,
        "receipt_id": receipt.receipt_id,
        "tenant": indexable(receipt.tenant),
        "request_id": indexable(receipt.request_id),
        "base_cid": receipt.base_cid,
        "head_cid": receipt.spec_decode.head_cid,
        "adapter_cid": receipt.adapter_cid,
        "profile_cid": receipt.profile_cid,
        "method": receipt.spec_decode.method,
        "issued_at": receipt.issued_at,
        "prompt_commitment": parse_digest(receipt.prompt.commitment),
        "output_commitment": parse_digest(receipt.output.commitment),
        "segment": index // SEGMENT,
        **receipt_counts(receipt),
    }


def receipt_counts(receipt: Receipt) -> dict[str, int | None]:
    """The columns of a receipt for auditors who query in SQL."""
    block = receipt.spec_decode
    return {
        "prompt_tokens": receipt.prompt.tokens,
        "output_tokens": receipt.output.tokens,
        "tokens_proposed": block.tokens_proposed,
        "tokens_accepted": block.tokens_accepted,
        "target_passes": block.target_passes,
    }


def _verdict_row(index: int, verdict: Verdict) -> dict[str, Any]:
    return {
        "index": index,
        "receipt_id": verdict.receipt_id,
        "receipt_index": verdict.receipt_index,
        "outcome": verdict.outcome,
    }
