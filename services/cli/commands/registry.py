"""`kolm registry`: the work of a registry's operator."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.options import options


def collect(
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE", help="Only blobs at least this old: 90m, 24h, 7d. An upload may still need younger ones."
        ),
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """Remove the blobs that no head refers to: uploads that were never published. Safe while the registry serves.

    Heads keep theirs, withdrawn ones too: an auditor may still want to verify them.
    """
    from services.cli.terminal.output import answer
    from services.cli.values.parsing import age
    from services.cli.views.heads.blobs import collected_json, collected_view
    from services.client.registry.registry import RegistryClient

    oldest = age("--older-than", older_than)
    with RegistryClient.connect(registry) as client:
        collected = client.collect(oldest, dry_run=dry_run)
    answer(json, lambda: collected_json(collected, dry_run), lambda: collected_view(collected, dry_run))
