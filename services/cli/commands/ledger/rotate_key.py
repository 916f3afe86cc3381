"""`kolm ledger rotate-key`: a new key in the place of an old one, on record in the log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures.exits import UsageError
from services.cli.options import options


def rotate_key(
    role: Annotated[str, typer.Argument(help="receipts, log, auditor, operator or publisher.")],
    home: options.Home = options.HOME,
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            metavar="FILE|URI",
            help="The private key to replace, a file or a PKCS#11 URI. Default: <data-dir>/keys/<role>.pem.",
        ),
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE|URI", help="The key that follows, made before; one in a device has to be named."),
    ] = None,
    log_key: Annotated[
        Path | None, typer.Option(metavar="FILE|URI", help="The log's key. Default: <data-dir>/keys/log.pem.")
    ] = None,
    by_operator: Annotated[
        bool,
        typer.Option("--by-operator", help="Operators sign in the place of the old key, if that was lost or stolen."),
    ] = False,
    operator_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--operator-key",
            help="An operator's private key, for --by-operator; repeat it until operator.threshold is met. "
            "Default: <data-dir>/keys/operator.pem.",
        ),
    ] = None,
    key_passphrase_file: options.KeyPassphrase = None,
    database_url: Annotated[
        str | None, typer.Option(envvar="KOLM_LEDGER_DATABASE_URL", help="Default: <data-dir>/ledger.sqlite3.")
    ] = None,
    guard_url: Annotated[
        str | None, typer.Option(envvar="KOLM_LEDGER_GUARD_URL", help="Default: <data-dir>/guard.sqlite3.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Replace a key, with the services stopped. Later signatures of the old key are refused and flagged."""
    from services.cli.jobs.ledger.key_rotation import LedgerFiles, rotate
    from services.cli.terminal.output import answer, talk

    data_dir = home.data_dir
    files = LedgerFiles(
        data_dir=data_dir,
        trusted=home.trusted,
        database=database_url or data_dir / "ledger.sqlite3",
        guard=guard_url or data_dir / "guard.sqlite3",
        key_file=key_file,
        new_key=new_key,
        log_key=log_key,
        passphrase_file=key_passphrase_file,
    )
    if operator_key and not by_operator:
        raise UsageError("--operator-key: belongs to --by-operator")
    operators = tuple(operator_key or [data_dir / "keys/operator.pem"]) if by_operator else ()
    rotated = rotate(files, role, operators)
    answer(
        json,
        lambda: asdict(rotated) | {"role": role},
        lambda: f"entry {rotated.index}: from here on {rotated.new} signs for {role}, and {rotated.old} no longer",
    )
    if new_key is not None and not json:
        talk().print(f"name it from now on: --key-file '{new_key}'", soft_wrap=True)
    if role == "log" and not json:
        talk().print(f"{data_dir / 'log.vkey'} says so: witnesses and policies need it beside the old one")
