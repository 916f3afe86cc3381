"""`kolm init`: keys and certificates with which services speak TLS to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options

_MOST_DAYS = 3650


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made, with mode 0700; refused where it has files.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or an address that services are reached by; may be repeated."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=_MOST_DAYS, help="How long certificates are valid.")] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Replace the certificates of a FOLDER; services that run take them.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Write a development authority, a certificate for each service and for you, and settings with mutual TLS."""
    from datetime import UTC, datetime

    from services.cli.jobs.initial_folder import InitialFolder
    from services.cli.terminal.output import answer

    made = InitialFolder(folder)
    (made.renew if renew else made.create)(host or [], datetime.now(UTC), days)
    answer(
        json,
        lambda: {"folder": str(folder), "settings": str(made.settings), "environment": str(made.environment)},
        lambda: (
            f"renewed the certificates in {folder / 'tls'}"
            if renew
            else f"wrote {folder}\n\n"
            f"  kolm serve ledger --config {made.settings}      # and the other services\n"
            f"  . {made.environment}      # for your own commands\n\n"
            f"{made.key('ca')} makes certificates that every service believes: keep it away from them."
        ),
    )
