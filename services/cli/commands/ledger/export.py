"""`kolm ledger export`: the log or a part of it, as a bundle, a proof file or static tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.failures.exits import UsageError
from services.cli.options import options
from services.cli.values.named_files import expect_room


def export(
    path: Annotated[
        Path,
        typer.Argument(
            help="A new folder, .tar.gz or .tar, or (with --receipt) a .tlog-proof file. For tiles a folder, new or "
            "written by this command before."
        ),
    ],
    format_name: Annotated[
        Literal["bundle", "tiles"],
        typer.Option("--format", help="A bundle, or the log as C2SP tlog-tiles for any web server: only what is new."),
    ] = "bundle",
    receipt: Annotated[
        list[str] | None, typer.Option("--receipt", help="Only these receipts, with the entries to verify them.")
    ] = None,
    start: Annotated[int | None, typer.Option(min=0, help="Only entries from this index on.")] = None,
    end: Annotated[int | None, typer.Option(min=0, help="Only entries before this index.")] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Include prompts and outputs that are not erased.")
    ] = False,
    ledger: options.Ledger = options.LEDGER,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """Write a bundle for `kolm verify`: the whole log, a range of it, or some receipts.

    The registry adds the manifests of the heads that the receipts name; missing ones are listed.
    """
    from rich.markup import escape

    from services.cli.jobs.ledger import bundle_export
    from services.cli.terminal.output import print_json, talk

    receipts = tuple(receipt or ())
    if format_name == "tiles":
        if receipts or content or (start, end) != (None, None):
            raise UsageError("--format tiles: is the whole log without content; leave the other flags out")
        return _write_tiles(path, ledger, json)
    expect_room("PATH", path)
    bundle_export.check_new(path)
    missing: tuple[str, ...] = ()
    if path.suffix == ".tlog-proof":
        if len(receipts) != 1:
            raise UsageError("a .tlog-proof is about one receipt: name it with --receipt")
        bundle_export.export_proof_to(path, ledger, receipts[0])
    else:
        wanted = bundle_export.BundleRequest(receipts, start, end, content)
        missing = bundle_export.export_bundle_to(path, ledger, registry, wanted)
    if json:
        return print_json({"path": str(path), "missing": missing})
    for absent in missing:
        talk().print(f"[yellow]not in the bundle:[/] {escape(absent)}", soft_wrap=True)
    talk().print(f"wrote {path}")


def _write_tiles(folder: Path, ledger: str, json: bool) -> None:
    from dataclasses import asdict

    from services.cli.jobs.ledger.tile_export import write_tiles
    from services.cli.terminal.output import answer

    written = write_tiles(folder, ledger)
    answer(
        json,
        lambda: asdict(written),
        lambda: f"{folder} stands at {written.size} entries, {written.size - written.before} of them new",
    )
