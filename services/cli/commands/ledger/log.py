"""`kolm ledger`: verify the whole log, show its signed head."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli import exits, options


def verify(
    database: options.Database = None,
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    origin: Annotated[str | None, typer.Option(help="Expect this name of the log in its checkpoint.")] = None,
    json: options.Json = False,
) -> None:
    """Check every entry, every signature and the signed head. Exit code 3, and which entry, if something is wrong."""
    from services.cli.jobs.ledger.log_verification import from_database, from_server
    from services.cli.jobs.trust import load_trusted, trusted_directory
    from services.cli.output import data, print_json, talk
    from services.cli.views.log_report import report_json, report_view

    place = None if database is None else options.database_place(database)
    if isinstance(place, Path) and trusted is None and (place.parent / "trusted").is_dir():
        trusted = place.parent / "trusted"
    keys = load_trusted(trusted_directory(trusted, data_dir))
    report = from_server(ledger, keys, origin) if place is None else from_database(place, keys, origin)
    if json:
        print_json(report_json(report))
    else:
        data().print(report_view(report))
        if place is not None and report.ok:
            talk().print("[dim]what is beside the entries (content, indexes, tiles): kolm ledger fsck --deep[/]")
    raise typer.Exit(exits.OK if report.ok else exits.VERIFICATION_FAILED)


def head(
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    note: Annotated[
        bool, typer.Option("--note", help="Only the signed note, byte for byte: what --checkpoint of `verify` takes.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show the newest signed checkpoint, and check its signature where the log's key is trusted."""
    if note and json:
        raise exits.UsageError("--note and --json: name one of them")
    from services.cli.jobs.trust import trusted_directory
    from services.cli.output import data, print_json
    from services.cli.views.checkpoint import head_json, head_view
    from services.client import LedgerClient

    with LedgerClient.connect(ledger) as client:
        checkpoint = client.checkpoint()
    directory = trusted_directory(trusted, data_dir)
    if note:
        head_json(checkpoint, directory)  # not one whose signature is known to be wrong
        sys.stdout.flush()
        sys.stdout.buffer.write(checkpoint.note)  # as it is, whatever the terminal's encoding
    elif json:
        print_json(head_json(checkpoint, directory))
    else:
        data().print(head_view(checkpoint, directory))
