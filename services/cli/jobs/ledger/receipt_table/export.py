"""Writes the table: receipts by entry, as of one tree of the log, each with the newest verdict on it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, kind_of, read_document
from ledger.documents.verdict import Verdict
from ledger.errors import FormatError
from ledger.keys.envelope import Envelope
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint
from services.cli.failures.exits import UsageError
from services.cli.jobs.ledger.bundle_export import draft_of
from services.cli.jobs.ledger.receipt_table.columns import Row
from services.cli.jobs.ledger.receipt_table.files import CsvFile, ParquetFile, TableFile
from services.client import LedgerClient
from services.client.ledger.log import ReceiptEntry
from services.client.ledger.log import Verdict as ListedVerdict

_BATCH = 4096
"""Rows that are in memory at once."""


def export_table(ledger: LedgerClient, path: Path, format_name: str, start: int | None, end: int | None) -> int:
    """Write the receipts among the entries [start, end) to a new file; returns how many there are.

    Entries that the log takes meanwhile are left out: the same tree gives the same rows. Raises UsageError, KolmError,
    Failed, FormatError where the server shows something else than receipts and verdicts.
    """
    if path.exists():
        raise UsageError(f"{path} exists already", "name a new file")
    note = ledger.checkpoint().note
    tree = Checkpoint.from_text(Note.from_bytes(note).text)
    first, last = start or 0, min(tree.size if end is None else end, tree.size)
    written = 0
    with draft_of(path) as draft, closing(_newest_verdicts(ledger.verdicts(), tree.size)) as verdicts:
        about = {"kolm.origin": tree.origin, "kolm.tree_size": str(tree.size), "kolm.root": tree.root.hex()}
        with _opened(draft, format_name, about) as file:
            for batch in _batches(_receipts(ledger, first, last)):
                file.write([_row(receipt, verdicts) for receipt in batch])
                written += len(batch)
        os.replace(draft, path)
    return written


def _opened(path: Path, format_name: str, about: dict[str, str]) -> TableFile:
    return CsvFile(path) if format_name == "csv" else ParquetFile(path, about)


def _receipts(ledger: LedgerClient, first: int, last: int) -> Iterator[ReceiptEntry]:
    return ledger.receipts(min_index=first, max_index=last - 1) if first < last else iter(())


def _newest_verdicts(listed: Iterable[ListedVerdict], size: int) -> sqlite3.Connection:
    """The newest verdict on each receipt and how many there are, in a private database that SQLite keeps on disk.

    A verdict may come any number of entries after its receipt, so they cannot be joined as they stream by.
    """
    verdicts = sqlite3.connect("")
    verdicts.execute("CREATE TABLE verdict (receipt INTEGER PRIMARY KEY, entry INTEGER, envelope BLOB, number INTEGER)")
    verdicts.executemany(
        "INSERT INTO verdict VALUES (?, ?, ?, 1) ON CONFLICT (receipt) DO UPDATE "
        "SET entry = excluded.entry, envelope = excluded.envelope, number = number + 1",
        ((each.receipt_index, each.index, each.envelope) for each in listed if each.index < size),
    )
    return verdicts


def _row(listed: ReceiptEntry, verdicts: sqlite3.Connection) -> Row:
    receipt = _document(listed.envelope)
    if not isinstance(receipt, Receipt):
        raise FormatError("receipts", f"entry {listed.index} is a {kind_of(receipt)}")
    found = verdicts.execute(
        "SELECT entry, envelope, number FROM verdict WHERE receipt = ?", (listed.index,)
    ).fetchone()
    if found is None:
        return Row(listed.index, receipt)
    entry, envelope, number = found
    verdict = _document(envelope)
    if not isinstance(verdict, Verdict) or verdict.receipt_id != receipt.receipt_id:
        raise FormatError("verdicts", f"entry {entry} is no verdict on the receipt {receipt.receipt_id}")
    return Row(listed.index, receipt, number, entry, verdict)


def _document(envelope: bytes) -> Document:
    return read_document(Envelope.from_bytes(envelope))


def _batches(receipts: Iterator[ReceiptEntry]) -> Iterator[list[ReceiptEntry]]:
    while batch := list(islice(receipts, _BATCH)):
        yield batch
