"""`kolm ledger tiles`: the log as a folder of static files for other log tools; again and again, as the log grows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options


def tiles(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or one that this command wrote before.")],
    ledger: options.Ledger = options.LEDGER,
    json: options.Json = False,
) -> None:
    """Write the log as C2SP tlog-tiles, for any web server. Writes only what is new; refuses a log that has forked."""
    from services.cli.jobs.ledger.tile_export import write_tiles
    from services.cli.terminal.output import answer

    written = write_tiles(folder, ledger)
    answer(
        json,
        lambda: asdict(written),
        lambda: f"{folder} stands at {written.size} entries, {written.size - written.before} of them new",
    )
