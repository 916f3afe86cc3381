"""The contract of a store: the sequencer and the readers ask no more of a database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ledger.documents.audit import Verdict
from ledger.documents.content import Content
from ledger.documents.erasure import Expiry, Retention
from ledger.documents.receipt import Receipt
from ledger.documents.reference_rules import JudgedOutput
from ledger.documents.signed_document import Document, kind_of, read_document
from ledger.encoding.text_forms import parse_digest
from ledger.log.receipt_filter import ReceiptFilter
from ledger.tree.entry import Entry
from ledger.tree.tile import Tile

Row = Mapping[str, Any]
SEGMENT = 2048
"""Receipts whose texts and digests share a part of an index."""


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
    """One listed receipt: the columns that it is found by, its entry bytes, the outcome of its latest verdict."""

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
    """The entries, the tree over them, and its signed heads. All else follows from it."""

    def size(self) -> int:
        """The number of entries; their indexes are 0 to size - 1. Raises ChainError where the indexes have a gap."""
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


class Index(Protocol):
    """What is found by more than its place. Made again from the log, it is the same."""

    def entries_of(self, kinds: Iterable[str], start: int = 0) -> Sequence[tuple[int, bytes]]:
        """Index and bytes of all entries of some kinds (names of `signed_document.KINDS`) from `start` on, in order.
        A reader that comes back does not read again what it has read.
        """
        ...

    def indexes_of_envelopes(self, digests: Sequence[bytes]) -> Mapping[bytes, int]:
        """Where envelopes of other documents than receipts stand, by the SHA-256 of their canonical bytes; only those
        that do. At most 1,000 at once.
        """
        ...

    def indexes_of_receipts(self, receipt_ids: Sequence[str]) -> Mapping[str, int]:
        """Where receipts stand, by id; only those that do. At most 1,000 at once."""
        ...

    def receipt_id_at(self, index: int) -> str | None:
        """`reference_rules.References`."""
        ...

    def output_at(self, index: int) -> JudgedOutput | None:
        """`reference_rules.References`."""
        ...

    def outcome_at(self, index: int) -> str | None:
        """`reference_rules.References`."""
        ...

    def retentions(self) -> Sequence[tuple[int, Retention]]:
        """`reference_rules.References`."""
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
        `newest_first` those below it, falling.
        """
        ...


class Vault(Protocol):
    """What receipts commit to, until it is erased, and which entries erased it: it does not follow from the log."""

    def expired(self, expiry: Expiry, limit: int | None) -> Sequence[int]:
        """The indexes of up to `limit` receipts (None: of all) that an expiry covers and whose content is there."""
        ...

    def content(self, receipt_index: int) -> Content | None:
        """The content of a receipt, None where none was given or it has been erased."""
        ...

    def erased_by(self, receipt_index: int) -> int | None:
        """The index of the first entry that has erased a receipt's content: an erasure, or an expiry, which erases only
        what is there. None if nothing has. One look-up, however much was erased before.
        """
        ...


class EntryStore(Log, Index, Vault, Protocol):
    """An append-only store of entries with tiles, checkpoints and erasable content: the three, written as one.

    Consistency: `commit` is all or nothing, and every read that starts after it returned sees the batch. Durability:
    once `commit` and `record_checkpoint` have returned, their rows survive a crash of the process and of the machine.
    Concurrency: one writing thread in one process (opening a second writer raises StoreLocked); reads from any thread.
    Immutability: an entry or checkpoint, once written, cannot be changed or removed through the store. Errors: NotFound
    where documented, StoreError for everything that goes wrong; after a StoreError from a write it is unknown whether
    the write happened, and only reading tells.
    """

    def commit(self, batch: Batch) -> None:
        """Append a batch whose first index is `size()`. Raises StoreError, also where the index is not the next one.

        An erasure in the batch takes the content of its receipt with it, for good: salts and token ids are gone when
        the erasure is there, and their bytes are overwritten as far as the database can.
        """
        ...

    def probe(self) -> None:
        """Write, durably, what changes nothing. Raises StoreError where the database takes no writes."""
        ...

    def check_held(self) -> None:
        """Raises StoreReplaced where a file is not the one that was opened, StoreLocked where another process writes,
        StoreError where the database does not answer. Each write asks this too, before and after.
        """
        ...

    def close(self) -> None:
        """Release files and locks. Closing twice changes nothing."""
        ...


def entries_from(store: EntryStore, start: int = 0, page: int = 256) -> Iterator[bytes]:
    """Stream the entries from `start` to the end, as `verify_log` takes them, one page in memory."""
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
    """Table and row of everything beside the leaf that can be derived again from its document."""
    if isinstance(document, Receipt):
        yield "receipts", _receipt_row(index, document)
    if isinstance(document, Verdict):
        yield "verdicts", _verdict_row(index, document)


def indexable(text: str) -> str:
    """Text as an index column holds it: PostgreSQL's text has no U+0000, and one odd name must not fail a batch."""
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
    """The columns of a receipt for people who ask in SQL."""
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
