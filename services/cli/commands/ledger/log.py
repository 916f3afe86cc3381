"""`kolm ledger verify` and `kolm ledger head`: the whole log, and its signed head."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures import exits
from services.cli.options import options


def verify(
    database: options.Database = None,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    origin: options.Origin = None,
    json: options.Json = False,
) -> None:
    """Check every entry, every signature and the signed head. Exit code 3, and which entry, if something is wrong."""
    from services.cli.jobs.ledger.log_verification import check_log
    from services.cli.jobs.trust import load_trusted
    from services.cli.terminal.output import answer, talk
    from services.cli.values.parsing import database_place
    from services.cli.views.log.log_report import report_json, report_view

    place = None if database is None else database_place(database)
    keys = home.trusted_beside(place.parent) if isinstance(place, Path) else home.trusted
    report = check_log(ledger, database, load_trusted(keys), origin)
    answer(json, lambda: report_json(report), lambda: report_view(report))
    if report.ok and place is not None and not json:
        talk().print("[dim]what is beside the entries (content, indexes, tiles): kolm ledger fsck --deep[/]")
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
