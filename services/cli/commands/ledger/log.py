"""`kolm ledger verify` and `kolm ledger head`: the whole log or its database, and its signed head."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.failures import exits
from services.cli.options import options

_UNGUARDED = (
    "whether this is an old backup was not checked. Name the guard with --guard; without one, a ledger service with "
    "entries starts only with --new-guard"
)
Depth = Literal["quick", "structure", "deep"]


def verify(
    database: options.Database = None,
    depth: Annotated[
        Depth | None,
        typer.Option(
            "--depth",
            help="Check the database itself, stopped or running, by default the one in <data-dir>: quick, that head, "
            "tiles and guard agree; structure, every row too; deep, every hash, signature and content too.",
        ),
    ] = None,
    guard: Annotated[
        str | None,
        typer.Option(
            "--guard", metavar="FILE|URL", help="The guard, for --depth. Default: guard.sqlite3 beside the file."
        ),
    ] = None,
    content_keys: Annotated[
        str | None,
        typer.Option(
            "--content-keys",
            metavar="FILE|URL",
            help="The keys of the contents, for --depth deep. Default: content-keys/keys.sqlite3 beside the file.",
        ),
    ] = None,
    obligations: Annotated[
        bool,
        typer.Option(
            "--obligations",
            help="Recompute, too, which receipts had to be replayed. Exit code 3 if a verdict is overdue or late, a "
            "draw is over another log, or a document is dated ahead.",
        ),
    ] = False,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    origin: options.Origin = None,
    json: options.Json = False,
) -> None:
    """Check every entry, every signature and the signed head. Exit code 3, and which entry, if something is wrong."""
    if depth is not None:
        if obligations:
            raise exits.UsageError("--obligations: follow from the entries; use it without --depth")
        return _verify_database(database, depth, guard, content_keys, home, origin, json)
    if guard is not None or content_keys is not None:
        raise exits.UsageError("--guard and --content-keys: belong to a database's check; name its --depth")

    from datetime import UTC, datetime

    from services.cli.jobs.ledger.log_verification import check_log, check_obligations
    from services.cli.jobs.trust import load_trusted
    from services.cli.terminal.output import answer, talk
    from services.cli.values.parsing import database_place
    from services.cli.views.log.log_report import report_json, report_view
    from services.cli.views.log.obligations import obligations_json, obligations_view

    place = None if database is None else database_place(database)
    keys = load_trusted(home.trusted_beside(place.parent) if isinstance(place, Path) else home.trusted)
    if not obligations:
        report = check_log(ledger, database, keys, origin)
        answer(json, lambda: report_json(report), lambda: report_view(report))
        if report.ok and place is not None and not json:
            talk().print(
                "[dim]what is beside the entries (content, indexes, tiles): kolm ledger verify --depth deep[/]"
            )
        raise typer.Exit(exits.OK if report.ok else exits.VERIFICATION_FAILED)
    report, book = check_obligations(ledger, database, keys, origin)
    now = datetime.now(UTC)
    done, ahead = book.completeness(now), book.dated_ahead(now)
    answer(
        json,
        lambda: report_json(report) | {"obligations": obligations_json(book.all(), done) | {"dated_ahead": ahead}},
        lambda: obligations_view(report_view(report), book.all(), done, ahead),
    )
    kept = report.ok and done.kept and ahead is None
    raise typer.Exit(exits.OK if kept else exits.VERIFICATION_FAILED)


def _verify_database(
    database: str | None,
    depth: Depth,
    guard: str | None,
    content_keys: str | None,
    home: options.Home,
    origin: str | None,
    json: bool,
) -> None:
    from ledger.fsck.report import Depth as Depths
    from services.cli.jobs.ledger.database_check import check_database
    from services.cli.jobs.trust import load_trusted
    from services.cli.terminal.output import answer, talk
    from services.cli.values.parsing import database_place
    from services.cli.views.log.log_report import database_json, database_view

    place = database_place(database) if database else home.data_dir / "ledger.sqlite3"
    folder = place.parent if isinstance(place, Path) else home.data_dir
    keys = load_trusted(home.trusted_beside(folder))
    usual_guard, usual_keys = folder / "guard.sqlite3", folder / "content-keys" / "keys.sqlite3"
    guard_place = database_place(guard) if guard else usual_guard if usual_guard.is_file() else None
    keys_place = database_place(content_keys) if content_keys else usual_keys if usual_keys.is_file() else None
    report = check_database(place, guard_place, folder / "witnessed", keys, Depths[depth.upper()], origin, keys_place)
    guarded = guard_place is not None
    answer(json, lambda: database_json(report, guarded=guarded), lambda: database_view(report))
    if report.size and not guarded:
        talk().print(f"[yellow]no guard[/] at {usual_guard}: {_UNGUARDED}", soft_wrap=True)
    if depth == "deep" and report.size and keys_place is None:
        talk().print(f"[yellow]no content keys[/] at {usual_keys}: no content was opened", soft_wrap=True)
    raise typer.Exit(exits.OK if report.ok else exits.VERIFICATION_FAILED)


def head(
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    note: Annotated[
        bool, typer.Option("--note", help="Only the signed note, byte for byte, for `kolm verify --checkpoint`.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show the newest signed checkpoint, and check its signature where the log's key is trusted."""
    from services.cli.jobs.trust import opened_checkpoint
    from services.cli.terminal.output import answer
    from services.cli.views.log.checkpoint import checkpoint_json, checkpoint_view
    from services.client import LedgerClient

    if note and json:
        raise exits.UsageError("--note and --json: name one of them")
    with LedgerClient.connect(ledger) as client:
        newest = client.checkpoint().note
    opened = opened_checkpoint(newest, home.trusted)
    if note:
        sys.stdout.flush()
        sys.stdout.buffer.write(newest)  # as it is, whatever the terminal's encoding
    else:
        answer(json, lambda: checkpoint_json(opened), lambda: checkpoint_view(opened))
