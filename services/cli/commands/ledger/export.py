"""`kolm ledger export`: the log or a part of it, as a bundle, a proof file or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.failures.exits import UsageError
from services.cli.options import options
from services.cli.values.named_files import expect_room


def export(
    path: Annotated[
        Path, typer.Argument(help="A new folder, .tar.gz, .tar or .zip, or (with --receipt) a .tlog-proof file.")
    ],
    receipt: Annotated[
        list[str] | None, typer.Option("--receipt", help="Only these receipts, with the entries to verify them.")
    ] = None,
    start: Annotated[int | None, typer.Option(min=0, help="Only entries from this index on.")] = None,
    end: Annotated[int | None, typer.Option(min=0, help="Only entries before this index.")] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Include prompts and outputs that are not erased.")
    ] = False,
    format_name: Annotated[
        Literal["csv", "parquet"] | None,
        typer.Option("--format", help="A table of receipts and their verdicts, one row a receipt (docs/tables.md)."),
    ] = None,
    ledger: options.Ledger = options.LEDGER,
    registry: options.Registry = options.REGISTRY,
) -> None:
    """Write a bundle for `kolm verify`: the whole log, a range of it, or some receipts; or a table of receipts.

    The registry adds the manifests of the heads that the receipts name; missing ones are listed.
    """
    from rich.markup import escape

    from services.cli.jobs.ledger import bundle_export
    from services.cli.terminal.output import talk

    expect_room("PATH", path)
    receipts = tuple(receipt or ())
    if format_name is not None:
        if receipts or content:
            raise UsageError("--format: a table holds all receipts of the log or of a range, and no content")
        from services.cli.jobs.ledger.receipt_table.export import export_table
        from services.client import LedgerClient

        with LedgerClient.connect(ledger) as client:
            rows = export_table(client, path, format_name, start, end)
        talk().print(f"wrote {path}: {rows} receipts")
        return
    bundle_export.check_new(path)
    if path.suffix == ".tlog-proof":
        if len(receipts) != 1:
            raise UsageError("a .tlog-proof is about one receipt: name it with --receipt")
        bundle_export.export_proof_to(path, ledger, receipts[0])
    else:
        wanted = bundle_export.BundleRequest(receipts, start, end, content)
        for absent in bundle_export.export_bundle_to(path, ledger, registry, wanted):
            talk().print(f"[yellow]not in the bundle:[/] {escape(absent)}", soft_wrap=True)
    talk().print(f"wrote {path}")
