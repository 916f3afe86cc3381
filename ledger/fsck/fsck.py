"""fsck: does a ledger's database agree with itself, with its guard and with what was signed? Reads, never repairs.

quick       the schema is what the ledger makes; the log is dense; the newest checkpoint is signed, and over these
            tiles; the guard agrees
structure   also: every entry chains; tiles, index rows and checkpoints are those that follow from the entries
deep        also: every signature, every rule, every content whose key is there, the pages of the file
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from ledger.audit.log_verification import verify_log
from ledger.documents.content import Content
from ledger.errors import ChainError, LedgerError, ProofError
from ledger.fsck.report import Depth, Finding, FsckReport
from ledger.fsck.walk import Walk
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.guard import check_extends, check_not_rolled_back
from ledger.log.index_rows import Row
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from ledger.tree.merkle import tree_root
from ledger.tree.tile import TileHashes, TileReader

MOST_FINDINGS = 100
"""So a table that is wrong from end to end is not listed row by row."""


class Inspection(TileReader, Protocol):
    """A database as it stood at one moment, row by row. Every method may raise StoreError."""

    def schema(self) -> Sequence[str]:
        """How tables, indexes and triggers differ from those that the ledger makes; empty where they do not."""
        ...

    def extent(self) -> tuple[int, int]:
        """How many entries there are, and one more than the greatest index."""
        ...

    def newest_checkpoint(self) -> Row | None:
        """The row of `checkpoints` with the greatest size."""
        ...

    def rows(self, table: str) -> Iterator[Row]:
        """The rows of `leaves`, `receipts`, `verdicts`, `contents`, `erasures`, `tiles` or `checkpoints`, in the order
        of their keys. Values are as the database returns them, of whatever type.
        """
        ...

    def content(self, row: Row, receipt_id: str) -> Content | None:
        """The content in a row of `contents`; None without the keys, and where it was erased since that moment.

        Raises FormatError where it does not open, or its key is gone.
        """
        ...

    def damage(self) -> Sequence[str]:
        """The damage that the database engine itself finds in its file; empty where it cannot tell."""
        ...


def fsck(
    inspection: Inspection,
    trusted: TrustedKeys,
    depth: Depth,
    *,
    guarded: Sequence[Checkpoint] = (),
    witnessed: Sequence[Checkpoint] = (),
    origin: str | None = None,
) -> FsckReport:
    """Run the checks of a depth and of those above it, and list what is wrong, up to MOST_FINDINGS.

    `guarded` is what the guard holds, read *before* the inspection began where a ledger is running beside it; only the
    head of this log is looked at. `witnessed` are checkpoints that the log has signed, as others keep them, under the
    same condition. Never raises for anything that is wrong with the database.
    """
    findings: list[Finding] = []
    size = covered = 0
    try:
        findings += (Finding("schema", None, problem) for problem in islice(inspection.schema(), MOST_FINDINGS))
        count, size = inspection.extent()
        head = _newest_head(inspection, trusted, origin)
        covered = 0 if head is None else head.size
        found = _findings(inspection, trusted, depth, count, size, head, _of_this_log(guarded, head, origin))
        findings += _against_witnessed(inspection, size, head, witnessed)
        findings += islice(_once_a_row(found), MOST_FINDINGS - len(findings))
    except LedgerError as error:  # from there on, nothing can be read
        findings.append(_blamed(error))
    return FsckReport(depth, size, max(size - covered, 0), tuple(findings))


def _once_a_row(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The deep checks find the findings of the structure again. Columns of one row come one after the other."""
    named: set[tuple[str, object]] = set()
    last: tuple[str, object] | None = None
    for finding in findings:
        place = (finding.table, finding.row)
        if place == last or place not in named:
            yield finding
        named.add(place)
        last = place


def _findings(
    inspection: Inspection,
    trusted: TrustedKeys,
    depth: Depth,
    count: int,
    size: int,
    head: Checkpoint | None,
    guarded: Checkpoint | None,
) -> Iterator[Finding]:
    if count != size:
        yield Finding("leaves", None, f"holds {count} entries, the last one at index {size - 1}")
    yield from _against_signed(inspection, size, head, guarded)
    if depth >= Depth.STRUCTURE:
        yield from Walk(inspection, contents=depth >= Depth.DEEP).findings()
    if depth >= Depth.DEEP:
        yield from (Finding("file", None, problem) for problem in inspection.damage())
        yield from _unsigned_checkpoints(inspection.rows("checkpoints"), trusted, head)
        report = verify_log(_entries(inspection), None, trusted)
        if report.problem is not None:
            yield Finding("leaves", report.bad_index, _without_name(report.problem, report.bad_index))


def _newest_head(inspection: Inspection, trusted: TrustedKeys, origin: str | None) -> Checkpoint | None:
    row = inspection.newest_checkpoint()
    if row is None:
        return None
    try:
        head = _opened(row, trusted, origin)
    except LedgerError as error:
        raise _RowError("checkpoints", row["size"], str(error)) from error
    return head


def _opened(row: Row, trusted: TrustedKeys, origin: str | None) -> Checkpoint:
    note = row["note"]
    head = open_checkpoint(note if isinstance(note, bytes) else b"", trusted.keys("log"), origin)
    if head.size != row["size"]:
        raise ProofError(f"is over {head.size} entries, by its note")
    return head


def _against_signed(
    inspection: Inspection, size: int, head: Checkpoint | None, guarded: Checkpoint | None
) -> Iterator[Finding]:
    """The newest checkpoint and the guard, against the tiles."""
    hashes = TileHashes(inspection)
    if head is not None and head.size > size:
        yield Finding("checkpoints", head.size, f"covers {head.size} entries, the log holds {size}")
    try:
        if head is not None and head.size <= size and tree_root(head.size, hashes) != head.root:
            yield Finding("checkpoints", head.size, "the tiles are not those that it was signed over")
        check_not_rolled_back(guarded, size, head, hashes)
    except LedgerError as error:
        yield Finding("guard", None, str(error))


def _against_witnessed(
    inspection: Inspection, size: int, head: Checkpoint | None, witnessed: Sequence[Checkpoint]
) -> Iterator[Finding]:
    for seen in witnessed:
        if head is not None and seen.origin != head.origin:
            continue
        try:
            check_extends(seen, size, TileHashes(inspection), "a witnessed checkpoint", head)
        except LedgerError as error:
            yield Finding("witnessed", seen.size, str(error))


def _unsigned_checkpoints(rows: Iterable[Row], trusted: TrustedKeys, head: Checkpoint | None) -> Iterator[Finding]:
    for row in rows:
        try:
            _opened(row, trusted, None if head is None else head.origin)
        except LedgerError as error:
            yield Finding("checkpoints", row["size"], str(error))


def _entries(inspection: Inspection) -> Iterator[bytes]:
    for row in inspection.rows("leaves"):
        entry = row["entry"]
        if not isinstance(entry, bytes):
            raise ChainError(row["index"], f"is damaged: the database returns {type(entry).__name__}, not bytes")
        yield entry


def _of_this_log(guarded: Sequence[Checkpoint], head: Checkpoint | None, origin: str | None) -> Checkpoint | None:
    """The head of this log, by the name in the newest checkpoint; the only head where the log has no checkpoint yet."""
    name = origin if head is None else head.origin
    if name is None:
        return guarded[0] if len(guarded) == 1 else None
    return next((each for each in guarded if each.origin == name), None)


class _RowError(LedgerError):
    """A row that later checks need and that is wrong."""

    def __init__(self, table: str, row: object, problem: str) -> None:
        super().__init__(problem)
        self.finding = Finding(table, row, problem)


def _blamed(error: LedgerError) -> Finding:
    if isinstance(error, _RowError):
        return error.finding
    if isinstance(error, ChainError):
        return Finding("leaves", error.index, error.problem)
    return Finding("database", None, str(error))


def _without_name(problem: str, index: int | None) -> str:
    return problem.removeprefix(f"entry {index}: ")
