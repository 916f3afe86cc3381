"""`kolm ledger verify` and `kolm ledger head`: the whole log or its database, and its signed head."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from ledger.audit.contradiction import Contradiction
from ledger.audit.log_clock import DatedAhead, LogClock
from ledger.audit.log_verification import Report, verify_log
from ledger.audit.obligation_fold import ObligationFold
from ledger.audit.processes import Processes
from ledger.documents.signed_document import counted as counted_kinds
from ledger.documents.signed_document import read_document
from ledger.errors import ChainError, LedgerError, StoreDamaged
from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from ledger.witness.cosignature_store import newest_signed
from services.cli.frame import exits, options
from services.cli.frame.exits import VerificationFailed
from services.cli.frame.options import ledger_at
from services.cli.frame.output import answer, members, remark, verifying_entries
from services.cli.frame.values import database_place
from services.cli.frame.views import MARKS, Column, Styled, View, facts, table
from services.cli.ledger.obligations import obligations_document, obligations_view
from services.cli.trust import load_trusted
from services.client.errors import DataLoss
from services.client.ledger.ledger import LedgerClient

if TYPE_CHECKING:
    from ledger import fsck
    from ledger.log.store import EntryStore

_UNGUARDED = (
    "an old backup would not be recognised. Name the guard with --guard; without one, a ledger service with entries "
    "starts only with --new-guard"
)
Depth = Literal["quick", "structure", "deep"]


_PAGE = 512

_DEFIED = "entry {index} was served in a scope that entry {halt_index} had halted"

Seen = Callable[[bytes], None]


def verify(
    database: options.Database = None,
    depth: Annotated[
        Depth | None,
        Option(
            "--depth",
            help="Check the database, in use or not, by default in <data-dir>: quick checks that head, tiles and guard "
            "agree, structure also every row, deep also every hash, signature and content.",
        ),
    ] = None,
    guard: Annotated[
        str | None,
        Option("--guard", metavar="FILE|URL", help="The guard, for --depth. Default: guard.sqlite3 next to the file."),
    ] = None,
    content_keys: Annotated[
        str | None,
        Option(
            "--content-keys",
            metavar="FILE|URL",
            help="The keys of the contents, for --depth deep. Default: content-keys/keys.sqlite3 next to the file.",
        ),
    ] = None,
    obligations: Annotated[
        bool,
        Option(
            "--obligations",
            help="Recompute as well which receipts had to be replayed. Exit code 3 if a verdict is overdue or late, a "
            "draw is over another log, or an auditor contradicts itself.",
        ),
    ] = False,
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    origin: options.Origin = None,
    json: options.Json = False,
) -> None:
    """Check every entry, every signature and the signed head. Exit code 3, with the entry, if a check fails."""
    if depth is not None:
        if obligations:
            raise exits.UsageError("--obligations: cannot be combined with --depth")
        return _verify_database(database, depth, guard, content_keys, paths, origin, json)
    if guard is not None or content_keys is not None:
        raise exits.UsageError("--guard and --content-keys: need --depth, the check of a database")

    place = None if database is None else database_place(database)
    keys = load_trusted(paths.trusted_beside(place.parent) if isinstance(place, Path) else paths.trusted)
    if not obligations:
        report = check_log(ledger, database, keys, origin)
        answer(json, report_document(report), report_view)
        if report.ok and place is not None and not json:
            remark(Styled("content, indexes and tiles are checked by kolm ledger verify --depth deep", "dim"))
        raise typer.Exit(exits.OK if report.ok else exits.VERIFICATION_FAILED)
    report, book = check_obligations(ledger, database, keys, origin)
    now = datetime.now(UTC)
    done = book.completeness(now)
    owed = {"obligations": obligations_document(book.all(), done)}
    answer(json, report_document(report) | owed, _audited_view)
    kept = report.ok and done.is_kept and not report.contradictions
    raise typer.Exit(exits.OK if kept else exits.VERIFICATION_FAILED)


def _verify_database(
    database: str | None, depth: Depth, guard: str | None, content_keys: str | None, paths: options.Paths,
    origin: str | None, json: bool,
) -> None:  # fmt: skip
    from ledger.fsck import Depth as Depths

    place = database_place(database) if database else paths.data_dir / "ledger.sqlite3"
    folder = place.parent if isinstance(place, Path) else paths.data_dir
    keys = load_trusted(paths.trusted_beside(folder))
    usual_guard, usual_keys = folder / "guard.sqlite3", folder / "content-keys" / "keys.sqlite3"
    guard_place = database_place(guard) if guard else usual_guard if usual_guard.is_file() else None
    keys_place = database_place(content_keys) if content_keys else usual_keys if usual_keys.is_file() else None
    report = check_database(place, guard_place, folder / "witnessed", keys, Depths[depth.upper()], origin, keys_place)
    guarded = guard_place is not None
    document = members(
        report, "ok", "size", "unsigned"
    ) | {  # unsigned: entries that the ledger signs at its next start
        "depth": depth,
        "guarded": guarded,
        "findings": [asdict(finding) | {"message": str(finding)} for finding in report.findings],
    }
    answer(json, document, _database_view)
    if report.size and not guarded:
        remark((Styled("no guard", "yellow"), f" at {usual_guard}: {_UNGUARDED}"))
    if depth == "deep" and report.size and keys_place is None:
        remark((Styled("no content keys", "yellow"), f" at {usual_keys}: no content was opened"))
    raise typer.Exit(exits.OK if report.ok else exits.VERIFICATION_FAILED)


def head(
    ledger: options.Ledger = options.LEDGER,
    paths: options.Paths = options.PATHS,
    note: Annotated[
        bool, Option("--note", help="Print only the signed note, byte for byte, for `kolm verify --checkpoint`.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show the newest signed checkpoint, and check its signature if the log's key is trusted."""
    if note and json:
        raise exits.UsageError("--note and --json: name one of them")
    with ledger_at(ledger) as client:
        newest = client.checkpoint().note
    checked = paths.trusted.is_dir()
    if checked:
        checkpoint = open_checkpoint(newest, load_trusted(paths.trusted).keys("log"))
    else:
        checkpoint = Checkpoint.from_text(Note.from_bytes(newest).text)
    if note:
        sys.stdout.flush()
        sys.stdout.buffer.write(newest)  # the signed bytes, in any encoding of the terminal
        return
    document = members(checkpoint, "origin", "size") | {
        "root": checkpoint.root.hex(),
        "signature_checked": checked,
        "checkpoint": newest.decode("utf-8"),
    }
    signature = "by a trusted key of the log" if checked else f"not checked: no trusted keys in {paths.trusted}"
    rows = (("origin", checkpoint.origin), ("entries", str(checkpoint.size)), ("root", checkpoint.root.hex()))
    answer(json, document, lambda _: facts(*rows, ("signature", (MARKS[checked or None], f" {signature}"))))


def check_log(
    server: str, database: str | None, trusted: TrustedKeys, origin: str | None = None, seen: Seen | None = None
) -> Report:
    """Verify the log in a database (file or URL, in use or not), or without one the log of a server.

    The server is not trusted. `seen` gets every entry before it is checked, so its results are valid only if the report
    is. Raises KolmError, NotFound, StoreError.
    """
    from ledger.sql.store import SqlEntryStore

    if database is None:
        with ledger_at(server) as ledger:
            return _check(_streamed(ledger), ledger.checkpoint().note, trusted, origin, seen)
    with closing(SqlEntryStore.open_for_reading(database_place(database))) as store:
        return _check(_stored(store), store.latest_checkpoint(), trusted, origin, seen)


def _check(
    entries: Iterator[bytes], checkpoint: bytes | None, trusted: TrustedKeys, origin: str | None, seen: Seen | None
) -> Report:
    with verifying_entries(_size_of(checkpoint)) as advance:

        def shown() -> Iterator[bytes]:
            for entry in entries:
                advance(1)
                if seen is not None:
                    seen(entry)
                yield entry

        return verify_log(shown(), checkpoint, trusted, origin, datetime.now(UTC), Processes().map)


def _size_of(checkpoint: bytes | None) -> int | None:
    """The size of an unverified checkpoint's tree; None if it cannot be read."""
    try:
        return None if checkpoint is None else Checkpoint.from_text(Note.from_bytes(checkpoint).text).size
    except LedgerError:
        return None


def _streamed(ledger: LedgerClient) -> Iterator[bytes]:
    """The entries of a server; one that it cannot read is a fault of the log, not of the connection."""
    position = 0
    with ledger.watch(0) as entries:
        try:
            for entry in entries:
                yield entry.entry
                position += 1
        except DataLoss as error:
            raise ChainError(position, f"the ledger cannot read it: {error.message}") from error


def _stored(store: EntryStore) -> Iterator[bytes]:
    position = 0
    while page := store.entries(position, _PAGE):
        yield from page
        position += len(page)


def check_obligations(
    server: str, database: str | None, trusted: TrustedKeys, origin: str | None = None
) -> tuple[Report, ObligationFold]:
    """`check_log`, and the obligations of auditors, recomputed from the same entries. Raises VerificationFailed for a
    log that does not verify.
    """
    book, clock = ObligationFold(), LogClock()
    clock.now_is(datetime.now(UTC))

    def seen(data: bytes) -> None:
        try:
            envelope = Entry.from_bytes(data).envelope
            document = read_document(envelope)
            book.observe(leaf_hash(data), envelope, document, clock.read(book.size, document))
        except LedgerError:
            return  # the verification, which follows, reports it

    report = check_log(server, database, trusted, origin, seen=seen)
    if not report.ok:
        raise VerificationFailed(f"the log does not verify: {report.problem}", "`kolm ledger verify` shows more")
    return report, book


def check_database(
    place: Path | str,
    guard: Path | str | None,
    notes: Path,
    keys: TrustedKeys,
    depth: fsck.Depth,
    origin: str | None,
    content_keys: Path | str | None = None,
) -> fsck.FsckReport:
    """Check a database. `place`, `guard` and `content_keys` are files or URLs. `notes` is a folder of checkpoints.

    Guard and notes are read first, because a running ledger's database may only be ahead of them.

    Raises NotFound, StoreError.
    """
    from ledger.fsck import fsck, unreadable
    from ledger.sql.inspection import SqlInspection

    newest = newest_signed(notes, keys.keys("log"), origin)
    try:
        guarded = () if guard is None else _guarded(guard)
    except StoreDamaged as damage:
        return unreadable(depth, damage, "guard")
    try:
        inspection = SqlInspection.open(place, content_keys)
    except StoreDamaged as damage:
        return unreadable(depth, damage)
    witnessed = () if newest is None else (newest,)
    with closing(inspection):
        return fsck(
            inspection, keys, depth, guarded=guarded, witnessed=witnessed, origin=origin, spread=Processes().map
        )


def _guarded(guard: Path | str) -> Sequence[Checkpoint]:
    from ledger.sql.guard import SqlGuard

    with closing(SqlGuard.open_for_reading(guard)) as opened:
        return opened.heads()


def report_document(report: Report) -> dict[str, Any]:
    """The result of the check of a whole log; `bad_index` is the first wrong entry."""
    return members(report, "ok", "problem", "bad_index", "size", "kinds", "checks") | {
        "root": report.root.hex(),
        "chain": report.chain.hex(),
        "halt_epoch": report.halts.epoch,
        "open_halts": [halt.halt_index for halt in report.halts.open],
        "defied_halts": [{"index": index, "halt_index": halt} for index, halt in report.defied_halts],
        "dated_ahead": dated_ahead_document(report.dated_ahead),
        "contradictions": [contradiction_document(each) for each in report.contradictions],
    }


def dated_ahead_document(found: DatedAhead) -> dict[str, Any] | None:
    """Entries with future times, of which `entries` are the first; None without one."""
    if not found:
        return None
    return {"count": found.count, "entries": list(found.first), "latest": found.latest, "message": str(found)}


def contradiction_document(found: Contradiction) -> dict[str, Any]:
    """Two verdicts of one auditor."""
    return members(found, "index", "earlier", "receipt_index", "auditor") | {"message": str(found)}


def report_view(report: dict[str, Any]) -> list[View]:
    """The checklist, the log's contents, and the verdict on it."""
    checklist = table(
        report["checks"],
        Column("", lambda check: MARKS[check["passed"]]),
        Column("check", "title"),
        Column("", lambda check: Styled("" if check["passed"] is False else check["detail"], "dim")),
    )
    kinds = counted_kinds(Counter(report["kinds"]))
    return [
        checklist,
        (f"{report['size']} entries", Styled(f" ({kinds or 'empty'})", "dim")),
        *(Styled(_DEFIED.format(**each), "bold red") for each in report["defied_halts"]),
        *(Styled(each["message"], "bold red") for each in report["contradictions"]),
        *([Styled(ahead["message"], "yellow")] if (ahead := report["dated_ahead"]) else []),
        Styled("ledger verified", "green") if report["ok"] else Styled(report["problem"] or "", "bold red"),
    ]


def _audited_view(report: dict[str, Any]) -> View:
    return [*report_view(report), *obligations_view(report["obligations"])]


def _database_view(report: dict[str, Any]) -> View:
    """One line for each finding, and the verdict."""
    unsigned = f"; {report['unsigned']} not signed yet, which the next start does" if report["unsigned"] else ""
    wrong = f"{len(report['findings'])} wrong"
    return [
        *(Styled(finding["message"], "red") for finding in report["findings"]),
        f"{report['size']} entries, {report['depth']} check{unsigned}",
        Styled("nothing wrong", "green") if report["ok"] else Styled(wrong, "bold red"),
    ]
