"""One pass of fsck over all entries, with every row that follows from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

from ledger.documents.content import Content
from ledger.documents.erasure import Erasure, Expiry
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, read_document
from ledger.encoding.base64_text import encode_base64
from ledger.encoding.digest import ZERO_DIGEST
from ledger.errors import FormatError
from ledger.fsck.report import Finding
from ledger.keys.note import Note
from ledger.log.index_rows import Row, index_rows, leaf_row
from ledger.tree.entry import Entry, entry_hash
from ledger.tree.merkle import Frontier, leaf_hash
from ledger.tree.tile import TILE_HEIGHT, TILE_WIDTH, Tile, TileEdge


class Rows(Protocol):
    """The source of rows; `fsck.Inspection` is one."""

    def rows(self, table: str) -> Iterator[Row]: ...

    def content(self, row: Row, receipt_id: str) -> Content | None: ...


class _Beside:
    """The rows of a table in step with the entries: at most one for each, keyed by the entry's index."""

    def __init__(self, table: str, rows: Iterator[Row], key: str) -> None:
        self.table = table
        self._rows = rows
        self.key_column = key
        self._next = next(rows, None)

    def at(self, index: int) -> Iterator[Row]:
        """The row of an entry, after those that belong to none before it."""
        while self._next is not None and not (isinstance(self.key, int) and self.key > index):
            row, self._next = self._next, next(self._rows, None)
            yield row

    @property
    def key(self) -> object:
        return None if self._next is None else self._next[self.key_column]

    def rest(self) -> Iterator[Row]:
        if self._next is not None:
            yield self._next
            yield from self._rows


class Walk:
    """One pass. Memory: a digest for each tile, a root for each checkpoint, tenant and time for each content and each
    erased receipt.
    """

    def __init__(self, source: Rows, *, contents: bool) -> None:
        self._source = source
        self._frontier, self._edge, self._previous = Frontier(), TileEdge(), ZERO_DIGEST
        self._tiles: dict[tuple[int, int], bytes] = {}
        self._batch: list[bytes] = []
        self._receipts = _Beside("receipts", source.rows("receipts"), "index")
        self._verdicts = _Beside("verdicts", source.rows("verdicts"), "index")
        self._contents = _Beside("contents", source.rows("contents"), "receipt_index") if contents else None
        self._erasures = _Beside("erasures", source.rows("erasures"), "receipt_index")
        self._checkpoints = _Beside("checkpoints", source.rows("checkpoints"), "size")
        self._content_of: dict[int, tuple[str, str]] = {}  # tenant and time of issue of receipts with content
        self._erased_by: dict[int, object] = {}
        self._said_erased: dict[object, dict[int, tuple[str, str]]] = {}  # the receipts of each entry that erased some

    def findings(self) -> Iterator[Finding]:
        """All that is wrong, in the order of the entries; the tiles last."""
        yield from self._check_checkpoints()
        for row in self._source.rows("leaves"):
            if row["index"] != self._frontier.size:  # from here on every row would be wrong
                yield Finding("leaves", row["index"], f"stands where entry {self._frontier.size} should be")
                return
            yield from self._check_leaf(row)
            yield from self._check_checkpoints()
        for table in (self._receipts, self._verdicts, self._contents, self._erasures, self._checkpoints):
            if table is not None:
                yield from (Finding(table.table, row[table.key_column], "belongs to no entry") for row in table.rest())
        for by, receipts in self._said_erased.items():
            yield from (Finding("erasures", each, f"names entry {by}, which erases nothing") for each in receipts)
        self._close_batch()
        yield from self._check_tiles()

    def _check_leaf(self, row: Row) -> Iterator[Finding]:
        index, data = self._frontier.size, row["entry"]
        if not isinstance(data, bytes):
            yield Finding("leaves", index, f"is damaged: the database returns {type(data).__name__}, not bytes")
            data = b""
        yield from self._check_entry(index, data, row)
        self._previous = entry_hash(data)
        self._frontier = self._frontier.append(leaf_hash(data))
        self._batch.append(leaf_hash(data))
        if len(self._batch) == TILE_WIDTH:
            self._close_batch()

    def _check_entry(self, index: int, data: bytes, row: Row) -> Iterator[Finding]:
        try:
            entry = Entry.from_bytes(data)
            document = read_document(entry.envelope)
        except FormatError as error:
            yield Finding("leaves", index, str(error))
            self._skip(index)
            return
        if entry.index != index:
            yield Finding("leaves", index, f"says that it is entry {entry.index}")
        if entry.previous != self._previous:
            yield Finding("leaves", index, f"names {entry.previous} as the one before it, which is {self._previous}")
        digest = hashlib.sha256(entry.envelope.to_bytes()).digest()
        yield from _differences("leaves", index, row, leaf_row(index, data, digest, document))
        yield from self._check_index_rows(index, document)
        yield from self._check_content(index, document)
        yield from self._check_erasures(index, document)

    def _skip(self, index: int) -> None:
        """Rows beside an unreadable entry cannot be judged."""
        for table in (self._receipts, self._verdicts, self._contents, self._erasures):
            if table is not None:
                list(table.at(index))

    def _check_index_rows(self, index: int, document: Document) -> Iterator[Finding]:
        expected = dict(index_rows(index, document))
        for table in (self._receipts, self._verdicts):
            found = False
            for row in table.at(index):
                if row["index"] == index and table.table in expected:
                    found = True
                    yield from _differences(table.table, index, row, expected[table.table])
                else:
                    yield Finding(table.table, row["index"], "belongs to no entry of its kind")
            if table.table in expected and not found:
                yield Finding(table.table, index, "is missing")

    def _check_content(self, index: int, document: Document) -> Iterator[Finding]:
        if self._contents is None:
            return
        for row in self._contents.at(index):
            if row["receipt_index"] != index or not isinstance(document, Receipt):
                yield Finding("contents", row["receipt_index"], "belongs to no receipt")
                continue
            self._content_of[index] = document.tenant, document.issued_at
            try:
                content = self._source.content(row, document.receipt_id)
                if content is not None:
                    content.check_against(document)
            except FormatError as error:
                yield Finding("contents", index, str(error))
        for erased in self._erased(document):
            yield Finding("contents", erased, f"is there, though entry {index} says that it was erased")

    def _check_erasures(self, index: int, document: Document) -> Iterator[Finding]:
        """An erasure has a row, or came after one. An expiry has rows of the contents that there were, which nothing
        else tells, so that only a row too many is found.
        """
        for row in self._erasures.at(index):
            if row["receipt_index"] != index or not isinstance(document, Receipt):
                yield Finding("erasures", row["receipt_index"], "belongs to no receipt")
                continue
            self._erased_by[index] = row["erasure_index"]
            receipts = self._said_erased.setdefault(row["erasure_index"], {})
            receipts[index] = document.tenant, document.issued_at
        said = self._said_erased.pop(index, {})
        if isinstance(document, Erasure):
            said.pop(document.receipt_index, None)
            by = self._erased_by.get(document.receipt_index)
            if not isinstance(by, int) or by > index:
                yield Finding("erasures", document.receipt_index, f"names {by}, and entry {index} erased it")
        if isinstance(document, Expiry):
            said = {each: terms for each, terms in said.items() if not document.covers(each, *terms)}
        yield from (Finding("erasures", each, f"names entry {index}, which did not erase it") for each in said)

    def _erased(self, document: Document) -> list[int]:
        """The contents that are there and that this document erases."""
        if isinstance(document, Erasure):
            return [index for index in (document.receipt_index,) if index in self._content_of]
        if isinstance(document, Expiry):
            return [index for index, terms in self._content_of.items() if document.covers(index, *terms)]
        return []

    def _check_checkpoints(self) -> Iterator[Finding]:
        for row in self._checkpoints.at(self._frontier.size):
            try:
                lines = Note.from_bytes(row["note"] if isinstance(row["note"], bytes) else b"").text.split("\n")
            except FormatError as error:
                yield Finding("checkpoints", row["size"], str(error))
                continue
            root = encode_base64(self._frontier.root())
            if row["size"] != self._frontier.size or lines[1:3] != [str(row["size"]), root]:
                yield Finding("checkpoints", row["size"], "is not over the entries before it")

    def _close_batch(self) -> None:
        self._edge, tiles = self._edge.append(self._batch)
        self._tiles |= {(tile.level, tile.number): _digest(tile) for tile in tiles}
        self._batch = []

    def _check_tiles(self) -> Iterator[Finding]:
        missing = dict(self._tiles)
        for row in self._source.rows("tiles"):
            place = (row["level"], row["number"])
            name, expected = f"{place[0]}/{place[1]}", missing.pop(place, None)
            if expected is None:
                yield Finding("tiles", name, f"is none of a tree of {self._frontier.size} entries")
            elif not isinstance(row["hashes"], bytes) or hashlib.sha256(row["hashes"]).digest() != expected:
                first = place[1] << (TILE_HEIGHT * (place[0] + 1))
                yield Finding("tiles", name, f"is not made of the entries from {first} on")
        yield from (Finding("tiles", f"{level}/{number}", "is missing") for level, number in missing)


def _differences(table: str, index: int, row: Row, expected: Row) -> Iterator[Finding]:
    for name, value in expected.items():
        if row[name] != value or type(row[name]) is not type(value):
            yield Finding(table, index, f"{name} is {_shown(row[name])}, the entry says {_shown(value)}")


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _digest(tile: Tile) -> bytes:
    return hashlib.sha256(tile.hashes).digest()
