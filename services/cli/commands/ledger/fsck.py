"""`kolm ledger fsck`: does a ledger's database agree with itself, with its guard and with what was signed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures import exits
from services.cli.options import options

_UNGUARDED = (
    "whether this is an old backup was not checked. Name the guard with --guard; without one, a ledger service with "
    "entries starts only with --new-guard"
)


def fsck(
    quick: Annotated[bool, typer.Option("--quick", help="Check only that head, tiles and guard agree.")] = False,
    structure: Annotated[
        bool, typer.Option("--structure", help="Check the chain, tiles, index rows and checkpoints too (the default).")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Check every signature, every content and the file too.")
    ] = False,
    database: options.Database = None,
    guard: Annotated[
        str | None,
        typer.Option("--guard", metavar="FILE|URL", help="The guard. Default: guard.sqlite3 beside the file."),
    ] = None,
    content_keys: Annotated[
        str | None,
        typer.Option(
            "--content-keys",
            metavar="FILE|URL",
            help="The keys of the contents, for --deep. Default: content-keys/keys.sqlite3 beside the file.",
        ),
    ] = None,
    home: options.Home = options.HOME,
    origin: options.Origin = None,
    json: options.Json = False,
) -> None:
    """Check a ledger's database, stopped or running; changes nothing. Exit code 3, and which rows, if it is wrong."""
    from services.cli.jobs.ledger.database_check import check_database, chosen_depth
    from services.cli.jobs.trust import load_trusted
    from services.cli.terminal.output import answer, talk
    from services.cli.values.parsing import database_place
    from services.cli.views.log.log_report import database_json, database_view

    if quick + structure + deep > 1:
        raise exits.UsageError("--quick, --structure and --deep: name one of them")
    place = database_place(database) if database else home.data_dir / "ledger.sqlite3"
    folder = place.parent if isinstance(place, Path) else home.data_dir
    keys = load_trusted(home.trusted_beside(folder))
    usual_guard = folder / "guard.sqlite3"
    guard_place = database_place(guard) if guard else usual_guard if usual_guard.is_file() else None
    depth = chosen_depth(quick=quick, deep=deep)
    usual_keys = folder / "content-keys" / "keys.sqlite3"
    keys_place = database_place(content_keys) if content_keys else usual_keys if usual_keys.is_file() else None
    report = check_database(place, guard_place, folder / "witnessed", keys, depth, origin, keys_place)
    guarded = guard_place is not None
    answer(json, lambda: database_json(report, guarded=guarded), lambda: database_view(report))
    if report.size and not guarded:
        talk().print(f"[yellow]no guard[/] at {usual_guard}: {_UNGUARDED}", soft_wrap=True)
    if deep and report.size and keys_place is None:
        talk().print(f"[yellow]no content keys[/] at {usual_keys}: no content was opened", soft_wrap=True)
    raise typer.Exit(exits.OK if report.ok else exits.VERIFICATION_FAILED)
