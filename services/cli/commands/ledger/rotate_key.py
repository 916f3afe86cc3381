"""`kolm ledger rotate-key`: a new key in the place of an old one, on record in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options
from services.cli.exits import UsageError


def rotate_key(
    role: Annotated[str, typer.Argument(help="receipts, log, auditor, operator or publisher.")],
    data_dir: options.DataDir = options.DATA_DIR,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="The private key to replace. Default: <data-dir>/keys/<role>.pem.")
    ] = None,
    by_operator: Annotated[
        bool,
        typer.Option("--by-operator", help="The old key was lost or stolen: operators sign in its place."),
    ] = False,
    operator_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--operator-key",
            help="An operator's private key, for --by-operator; as often as operator.threshold asks for. "
            "Default: <data-dir>/keys/operator.pem.",
        ),
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(envvar="KOLM_LEDGER_DATABASE_URL", help="Default: <data-dir>/ledger.sqlite3.")
    ] = None,
    guard_url: Annotated[
        str | None, typer.Option(envvar="KOLM_LEDGER_GUARD_URL", help="Default: <data-dir>/guard.sqlite3.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Replace a key, with the services stopped. What the old one signs from then on is refused, and flagged."""
    from services.cli.jobs.ledger.key_rotation import LedgerFiles, rotate
    from services.cli.output import data, print_json, talk

    files = LedgerFiles(
        data_dir, database_url or data_dir / "ledger.sqlite3", guard_url or data_dir / "guard.sqlite3", key_file
    )
    if operator_key and not by_operator:
        raise UsageError("--operator-key: belongs to --by-operator")
    operators = tuple(operator_key or [data_dir / "keys/operator.pem"]) if by_operator else ()
    rotated = rotate(files, role, operators)
    if json:
        print_json({"index": rotated.index, "role": role, "old": rotated.old, "new": rotated.new})
    else:
        data().print(f"entry {rotated.index}: from here on {rotated.new} signs for {role}, and {rotated.old} no longer")
        if role == "log":
            talk().print(f"{data_dir / 'log.vkey'} says so: witnesses and policies need it beside the old one")
