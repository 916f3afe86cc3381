"""`kolm ledger export`: a piece of the log to carry away, as a bundle, a proof file or static tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options
from services.cli.exits import UsageError


def export(
    path: Annotated[
        Path, typer.Argument(help="Where to: a new folder, .tar.gz, or (with --receipt) .tlog-proof file.")
    ],
    receipt: Annotated[
        list[str] | None, typer.Option("--receipt", help="Only these receipts, with what is needed to judge them.")
    ] = None,
    start: Annotated[int | None, typer.Option(min=0, help="Only entries from this index on.")] = None,
    end: Annotated[int | None, typer.Option(min=0, help="Only entries before this index.")] = None,
    content: Annotated[
        bool, typer.Option("--content", help="With prompts and outputs, where not erased; asks as an auditor.")
    ] = False,
    tiles: Annotated[
        bool, typer.Option("--tiles", help="The whole log as static files for other people's log tools (tlog-tiles).")
    ] = False,
    auditor_secret: Annotated[
        str | None, typer.Option("--auditor-secret", envvar="KOLM_LEDGER_AUDITOR_SECRET", help="What auditors bring.")
    ] = None,
    ledger: options.Ledger = options.LEDGER,
) -> None:
    """Write a bundle that `kolm verify` checks offline. The whole log, a range of it, or some receipts."""
    from services.cli.exporting import export_bundle_to, export_proof_to, export_tiles_to
    from services.cli.output import talk

    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} is there already", "name a new file, or a folder that is not there or empty")
    receipts = tuple(receipt or ())
    if tiles:
        if receipts or content or start is not None or end is not None:
            raise UsageError("--tiles: are of the whole log, without content")
        export_tiles_to(path, ledger)
    elif path.suffix == ".tlog-proof":
        if len(receipts) != 1:
            raise UsageError("a .tlog-proof is about one receipt: name it with --receipt")
        export_proof_to(path, ledger, receipts[0])
    else:
        export_bundle_to(path, ledger, receipts, (start, end), content=content, secret=auditor_secret)
    talk().print(f"wrote {path}")
