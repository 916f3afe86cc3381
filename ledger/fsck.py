"""fsck: checks that a ledger's database agrees with itself, its guard and its signed heads. Reads, never repairs.

quick       tables, columns, indexes and triggers are there; the log is dense; the newest checkpoint is signed, and over
            these tiles; the guard agrees
structure   also: every entry has its index; tiles, index rows and checkpoints follow from the entries
deep        also: every signature, every rule, every content whose key is there, the pages of the file
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol

from ledger.audit.log_verification import verify_log
from ledger.documents.content import Content
from ledger.documents.erasure import Erasure, Expiry
from ledger.documents.key_history import KeyHistory
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, read_document
from ledger.encoding.text_forms import encode_base64
from ledger.errors import FormatError, LedgerError, ProofError, SignatureError, StoreDamaged
from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.continuity import check_extends, check_not_rolled_back
from ledger.log.store import Row, index_rows, leaf_row
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from ledger.tree.entry import CHAIN_START, Entry, chained
from ledger.tree.merkle import Frontier, leaf_hash, tree_root
from ledger.tree.tile import TILE_HEIGHT, TILE_WIDTH, TileEdge, TileHashes, TileReader

Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or a variant with several processes; results in the order of the jobs."""

MOST_FINDINGS = 100
"""The most findings of a report: a table that is wrong from end to end is not listed row by row."""

_LEAST, _MOST = -(2**63), 2**63 - 1
"""The least and the greatest key in a database."""


class Depth(IntEnum):
    """The depth of a check. The time of `quick` does not depend on the log's size; that of the others grows with it."""

    QUICK = 0
    STRUCTURE = 1
    DEEP = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: the table, the key of the row (None for the whole table), and the problem."""

    table: str
    row: object
    problem: str

    def __str__(self) -> str:
        return f"{self.table}: {self.problem}" if self.row is None else f"{self.table} row {self.row}: {self.problem}"


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The findings, in the order in which they were found. `size` is the number of entries; no checkpoint covers the
    last `unsigned` of them yet.

    A crash leaves entries without a checkpoint; the next start checks and signs them.
    """

    depth: Depth
    size: int
    unsigned: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


class Inspection(TileReader, Protocol):
    """A snapshot of a database, row by row. Every method may raise StoreError."""

    def schema(self) -> Sequence[str]:
        """Descriptions of the missing tables, columns, indexes, views and triggers."""
        ...

    def extent(self) -> tuple[int, int]:
        """The number of entries, and one more than the greatest index."""
        ...

    def key_entries(self) -> Iterator[tuple[int, object]]:
        """Index and bytes of the entries of kind `key`, in order."""
        ...

    def newest_checkpoint(self) -> Row | None:
        """The row of `checkpoints` with the greatest size."""
        ...

    def rows(self, table: str, first: int | None = None, last: int | None = None) -> Iterator[Row]:
        """The rows of `leaves`, `receipts`, `verdicts`, `contents`, `erasures`, `tiles` or `checkpoints`, in the order
        of their keys; with bounds, the rows with keys between them. Values have the type that the database returns.
        """
        ...

    def content(self, row: Row, receipt_id: str) -> Content | None:
        """The content in a row of `contents`; None without the keys, or if it was erased after the snapshot. Raises
        FormatError if it does not open, or its key is gone.
        """
        ...

    def expired(self, expiry: Expiry) -> Iterable[int]:
        """The receipts with content that an expiry covers, by the rows of `receipts`."""
        ...

    def damage(self) -> Sequence[str]:
        """The damage that the database engine finds in its file; empty if it has no such check."""
        ...


def unreadable(depth: Depth, damage: StoreDamaged, what: str = "database") -> FsckReport:
    """The report on a database or a guard that could not be opened."""
    return FsckReport(depth, 0, 0, (Finding(what, None, str(damage)),))


def fsck(
    inspection: Inspection,
    trusted: TrustedKeys,
    depth: Depth,
    *,
    guarded: Sequence[Checkpoint] = (),
    witnessed: Sequence[Checkpoint] = (),
    origin: str | None = None,
    spread: Spread = map,
) -> FsckReport:
    """Run the checks of a depth and of lower depths, and list up to MOST_FINDINGS faults.

    `guarded` has the heads of the guard, read *before* the inspection began if a ledger is running; only the head of
    this log is used. `witnessed` has checkpoints that the log signed and others kept, read before it too. `spread` may
    read entries and verify signatures in several processes; the report is the same. Faults of the database are never
    raised.
    """
    findings: list[Finding] = []
    size = covered = 0
    try:
        findings += (Finding("schema", None, problem) for problem in islice(inspection.schema(), MOST_FINDINGS))
        count, size = inspection.extent()
        if count != size:
            findings.append(Finding("leaves", None, f"holds {count} entries, the last one at index {size - 1}"))
        head, keys = None, _key_history(inspection, trusted)
        row = inspection.newest_checkpoint()
        if row is not None:
            try:
                head = _open_checkpoint(row, keys, origin)
                covered = head.size
            except LedgerError as error:
                findings.append(Finding("checkpoints", row["size"], str(error)))
        signed = _compare_with_signed_heads(inspection, size, head, _guarded_head(guarded, head, origin), witnessed)
        rows = _without_later_findings(_of_all_rows(inspection, trusted, keys, depth, head, spread))
        for found in (signed, rows):
            findings += islice(found, max(MOST_FINDINGS - len(findings), 0))
    except LedgerError as error:  # nothing more can be read
        findings.append(Finding("database", None, str(error)))
    return FsckReport(depth, size, max(size - covered, 0), tuple(findings))


def _without_later_findings(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Drop later findings about a row: deep checks find structural faults again. One check's findings about a row are
    adjacent and stay together.
    """
    named: set[tuple[str, object]] = set()
    last: tuple[str, object] | None = None
    for finding in findings:
        place = (finding.table, finding.row)
        if place == last or place not in named:
            yield finding
        named.add(place)
        last = place


def _key_history(inspection: Inspection, trusted: TrustedKeys) -> KeyHistory:
    """The keys by index. An invalid key entry changes nothing: the deep check names it."""
    keys = KeyHistory.of(trusted)
    for index, data in inspection.key_entries():
        with suppress(FormatError, SignatureError):
            keys = keys.after(index, keys.open(index, Entry.from_bytes(_bytes(data)).envelope))
    return keys


def _open_checkpoint(row: Row, keys: KeyHistory, origin: str | None) -> Checkpoint:
    note, size = row["note"], row["size"]
    signers = keys.at(max(size - 1, 0) if isinstance(size, int) else 0).keys("log")
    head = open_checkpoint(note if isinstance(note, bytes) else b"", signers, origin)
    if head.size != size:
        raise ProofError(f"is over {head.size} entries, by its note")
    return head


def _guarded_head(guarded: Sequence[Checkpoint], head: Checkpoint | None, origin: str | None) -> Checkpoint | None:
    """The head of this log, by the name in the newest checkpoint; the only head if the log has no checkpoint yet."""
    name = origin if head is None else head.origin
    if name is None:
        return guarded[0] if len(guarded) == 1 else None
    return next((each for each in guarded if each.origin == name), None)


def _compare_with_signed_heads(
    inspection: Inspection,
    size: int,
    head: Checkpoint | None,
    guarded: Checkpoint | None,
    witnessed: Sequence[Checkpoint],
) -> Iterator[Finding]:
    """Compare the newest checkpoint, the guard and the witnessed checkpoints with the tiles."""
    hashes = TileHashes(inspection)
    if head is not None and head.size > size:
        yield Finding("checkpoints", head.size, f"covers {head.size} entries, the log holds {size}")
    try:
        if head is not None and head.size <= size and tree_root(head.size, hashes) != head.root:
            yield Finding("checkpoints", head.size, "its root is not the root of the tiles")
        check_not_rolled_back(guarded, size, head, hashes)
    except LedgerError as error:
        yield Finding("guard", None, str(error))
    for seen in witnessed:
        if head is None or seen.origin == head.origin:
            try:
                check_extends(seen, size, hashes, "a witnessed checkpoint", head)
            except LedgerError as error:
                yield Finding("witnessed", seen.size, str(error))


def _of_all_rows(
    inspection: Inspection,
    trusted: TrustedKeys,
    keys: KeyHistory,
    depth: Depth,
    head: Checkpoint | None,
    spread: Spread,
) -> Iterator[Finding]:
    if depth >= Depth.STRUCTURE:
        yield from _Comparison(inspection, spread, contents=depth >= Depth.DEEP).findings()
    if depth >= Depth.DEEP:
        yield from (Finding("file", None, problem) for problem in inspection.damage())
        for row in inspection.rows("checkpoints"):
            try:
                _open_checkpoint(row, keys, None if head is None else head.origin)
            except LedgerError as error:
                yield Finding("checkpoints", row["size"], str(error))
        entries = (row["entry"] if isinstance(row["entry"], bytes) else b"" for row in inspection.rows("leaves"))
        report = verify_log(entries, None, trusted, spread=spread)
        if report.problem is not None:
            problem = report.problem.removeprefix(f"entry {report.bad_index}: ")
            yield Finding("leaves", report.bad_index, problem)


@dataclass(frozen=True, slots=True)
class _ReadEntry:
    """An entry without its bytes, sent between processes."""

    index: int
    envelope_digest: bytes
    document: Document


def _read_entries(entries: Iterable[bytes]) -> list[_ReadEntry | str]:
    """Each entry, or the reason why it cannot be read."""
    return [_read_entry(data) for data in entries]


def _read_entry(data: bytes) -> _ReadEntry | str:
    try:
        entry = Entry.from_bytes(data)
        return _ReadEntry(
            entry.index, hashlib.sha256(entry.envelope.to_bytes()).digest(), read_document(entry.envelope)
        )
    except FormatError as error:
        return str(error)


class _Comparison:
    """Compares all rows with the rows that follow from the entries, in both directions, one tile of entries at a time.
    Several processes read entries if `spread` is not `map`.

    Memory: a few batches, and a digest for each tile.
    """

    def __init__(self, source: Inspection, spread: Spread, *, contents: bool) -> None:
        self._source = source
        self._spread = spread
        self._failure: LedgerError | None = None
        self._with_contents = contents
        self._frontier, self._edge, self._chain = Frontier(), TileEdge(), CHAIN_START
        self._tiles: dict[tuple[int, int], bytes] = {}
        self._erasing_document = lru_cache(TILE_WIDTH)(self._document_at)
        # of the batch:
        self._documents: dict[int, Document] = {}
        self._unreadable: set[int] = set()  # rows of these entries cannot be judged
        self._heads = {0: self._frontier}

    def findings(self) -> Iterator[Finding]:
        """The faults, batch by batch, and then the faults of the tiles."""
        waiting: deque[list[Row]] = deque()
        first = _LEAST
        for read in self._spread(_read_entries, self._entries(waiting)):
            batch = waiting.popleft()
            for row, found in zip(batch, read, strict=True):
                if row["index"] != self._frontier.size:  # every later row would be wrong
                    yield Finding("leaves", row["index"], f"is in the place of entry {self._frontier.size}")
                    return
                yield from self._check_leaf(row, found)
            yield from self._check_rows(first, self._frontier.size - 1)
            self._edge, tiles = self._edge.append(leaf_hash(_bytes(row["entry"])) for row in batch)
            self._tiles |= {(tile.level, tile.number): hashlib.sha256(tile.hashes).digest() for tile in tiles}
            first = self._frontier.size
            self._documents, self._unreadable, self._heads = {}, set(), {}
        if self._failure is not None:
            raise self._failure
        yield from self._check_rows(first, _MOST)
        yield from self._check_tiles()

    def _entries(self, waiting: deque[list[Row]]) -> Iterator[list[bytes]]:
        """The entries, batch by batch; their rows wait in `waiting` until the entries have been read."""
        leaves = self._source.rows("leaves")
        try:
            while batch := list(islice(leaves, TILE_WIDTH)):
                waiting.append(batch)
                yield [_bytes(row["entry"]) for row in batch]
        except LedgerError as error:  # the rows read before the error are checked first
            self._failure = error

    def _check_leaf(self, row: Row, found: _ReadEntry | str) -> Iterator[Finding]:
        index, data = self._frontier.size, _bytes(row["entry"])
        leaf = leaf_hash(data)
        self._chain = chained(self._chain, leaf)
        if data is not row["entry"]:
            found = f"entry: the database returns {type(row['entry']).__name__}, not bytes"
        if isinstance(found, str):
            yield Finding("leaves", index, found)
            self._unreadable.add(index)
        else:
            self._documents[index] = found.document
            if found.index != index:
                yield Finding("leaves", index, f"is numbered {found.index}")
            expected = leaf_row(index, data, found.envelope_digest, found.document, self._chain)
            yield from _differences("leaves", index, row, expected)
        self._frontier = self._heads[index + 1] = self._frontier.append(leaf)

    def _check_rows(self, first: int, last: int) -> Iterator[Finding]:
        """Check the rows of a batch, the entries `first` to `last`, and rows of missing entries."""
        derived: dict[str, dict[int, Row]] = {"receipts": {}, "verdicts": {}}
        for index, document in self._documents.items():
            for table, expected_row in index_rows(index, document):
                derived[table][index] = expected_row
        for table, expected in derived.items():
            yield from _compared(table, expected, self._rows(table, "index", first, last))
        if self._with_contents:
            yield from self._check_contents(first, last)
        yield from self._check_erasures(first, last)
        for row in self._source.rows("checkpoints", first + 1, min(last + 1, _MOST)):
            yield from self._check_checkpoint(row)

    def _rows(self, table: str, key: str, first: int, last: int) -> Iterator[Row]:
        return (row for row in self._source.rows(table, first, last) if row[key] not in self._unreadable)

    def _check_contents(self, first: int, last: int) -> Iterator[Finding]:
        for row in self._rows("contents", "receipt_index", first, last):
            index = row["receipt_index"]
            receipt = self._documents.get(index)
            if not isinstance(receipt, Receipt):
                yield Finding("contents", index, "belongs to no receipt")
                continue
            if row["sealed"] == b"" and any(self._source.rows("erasures", index, index)):
                continue  # the ledger stopped before it destroyed the key; the next start destroys it
            try:
                content = self._source.content(row, receipt.receipt_id)
                if content is not None:
                    content.check_against(receipt)
            except FormatError as error:
                yield Finding("contents", index, str(error))
        for index, document in self._documents.items():
            erased: Iterable[int] = ()
            if isinstance(document, Erasure):
                named = document.receipt_index
                there = self._source.rows("contents", named, named)
                erased = (row["receipt_index"] for row in there if row["sealed"] != b"")
            if isinstance(document, Expiry):
                erased = self._source.expired(document)
            yield from (Finding("contents", each, f"exists, and entry {index} erased it") for each in erased)

    def _check_erasures(self, first: int, last: int) -> Iterator[Finding]:
        """Each erasure must have a row, unless an earlier erasure has it. An expiry has rows only for contents that
        existed, which no entry shows: only its surplus rows are found.
        """
        for row in self._rows("erasures", "receipt_index", first, last):
            index, by = row["receipt_index"], row["erasure_index"]
            receipt = self._documents.get(index)
            if not isinstance(receipt, Receipt):
                yield Finding("erasures", index, "belongs to no receipt")
            elif not _erases(self._erasing_document(by), index, receipt):
                yield Finding("erasures", index, f"names entry {by}, which did not erase it")
        for index, document in self._documents.items():
            if isinstance(document, Erasure):
                named = document.receipt_index
                by = next((row["erasure_index"] for row in self._source.rows("erasures", named, named)), None)
                if not isinstance(by, int) or by > index:
                    yield Finding("erasures", named, f"names {by}, and entry {index} erased it")

    def _document_at(self, index: object) -> Document | None:
        """The document of any entry; None if it cannot be read."""
        if not isinstance(index, int):
            return None
        for row in self._source.rows("leaves", index, index):
            try:
                return read_document(Entry.from_bytes(_bytes(row["entry"])).envelope)
            except FormatError:
                return None
        return None

    def _check_checkpoint(self, row: Row) -> Iterator[Finding]:
        frontier = self._heads.get(row["size"])
        try:
            lines = Note.from_bytes(_bytes(row["note"])).text.split("\n")
        except FormatError as error:
            yield Finding("checkpoints", row["size"], str(error))
            return
        if frontier is None or lines[1:3] != [str(frontier.size), encode_base64(frontier.root())]:
            yield Finding("checkpoints", row["size"], "is not over the entries before it")

    def _check_tiles(self) -> Iterator[Finding]:
        for row in self._source.rows("tiles"):
            place = (row["level"], row["number"])
            name, expected = f"{place[0]}/{place[1]}", self._tiles.pop(place, None)
            if expected is None:
                yield Finding("tiles", name, f"does not belong to a tree of {self._frontier.size} entries")
            elif hashlib.sha256(_bytes(row["hashes"])).digest() != expected:
                first = place[1] << (TILE_HEIGHT * (place[0] + 1))
                yield Finding("tiles", name, f"does not have the hashes of the entries from {first} on")
        yield from (Finding("tiles", f"{level}/{number}", "is missing") for level, number in self._tiles)


def _compared(table: str, expected: Mapping[int, Row], found: Iterable[Row]) -> Iterator[Finding]:
    """Rows of an index table that are missing, differ, or follow from no entry."""
    missing = dict(expected)
    for row in found:
        derived = missing.pop(row["index"], None)
        if derived is None:
            yield Finding(table, row["index"], "belongs to no entry of its kind")
        else:
            yield from _differences(table, row["index"], row, derived)
    yield from (Finding(table, index, "is missing") for index in missing)


def _differences(table: str, index: int, row: Row, expected: Row) -> Iterator[Finding]:
    for name, value in expected.items():
        if row[name] != value or type(row[name]) is not type(value):
            yield Finding(table, index, f"{name} is {_shown(row[name])}, and {_shown(value)} in the entry")


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _erases(document: Document | None, index: int, receipt: Receipt) -> bool:
    if isinstance(document, Expiry):
        return document.covers(index, receipt.tenant, receipt.issued_at)
    return isinstance(document, Erasure) and document.receipt_index == index


def _bytes(value: object) -> bytes:
    """The bytes of a column; empty for a value of another type, as after a bit flip. No intact column is empty."""
    return value if isinstance(value, bytes) else b""
