"""`kolm ledger export`: a piece of the log to carry away, as a bundle, a proof file or static tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options
from services.cli.exits import UsageError

_OTHER_ARCHIVES = frozenset((".gz", ".xz", ".bz2", ".zst", ".7z", ".rar", ".txz", ".tbz2", ".tzst"))


def export(
    path: Annotated[
        Path, typer.Argument(help="Where to: a new folder, .tar.gz, .tar, .zip, or (with --receipt) .tlog-proof file.")
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
    registry: options.Registry = options.REGISTRY,
) -> None:
    """Write a bundle that `kolm verify` checks offline. The whole log, a range of it, or some receipts.

    The manifests of the heads that its receipts name come from the registry; what it does not have is said.
    """
    from rich.markup import escape

    from services.cli.jobs.ledger.bundle_export import BundleRequest, export_bundle_to, export_proof_to, export_tiles_to
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
        _refuse_other_archives(path)
        wanted = BundleRequest(receipts, (start, end), content, auditor_secret)
        for absent in export_bundle_to(path, ledger, registry, wanted):
            talk().print(f"[yellow]not in the bundle:[/] {escape(absent)}", soft_wrap=True)
    talk().print(f"wrote {path}")


def _refuse_other_archives(path: Path) -> None:
    """Nobody who names an archive wants a folder of that name."""
    from services.cli.jobs.ledger.bundle_export import ARCHIVES

    if path.suffix in _OTHER_ARCHIVES and not path.name.endswith(ARCHIVES):
        raise UsageError(f"{path.name}: no archive that `kolm verify` reads", "write .tar.gz, .tar, .zip, or a folder")
