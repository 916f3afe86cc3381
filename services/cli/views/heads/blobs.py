"""Results of a collection of blobs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType

from services.cli.terminal.output import size, table
from services.client.registry import Collected


def collected_json(collected: Collected, dry_run: bool) -> dict[str, Any]:
    """Sizes in bytes."""
    return asdict(collected) | {"freed": collected.freed, "dry_run": dry_run}


def collected_view(collected: Collected, dry_run: bool) -> RenderableType:
    """The blobs that were removed, and the numbers of those that were kept."""
    verb = "would remove" if dry_run else "removed"
    lines = [
        f"{verb} {_blobs(len(collected.removed))}, {size(collected.freed)}",
        f"kept {_blobs(collected.referenced)} of heads and {_blobs(collected.young)} that no head refers to yet",
    ]
    if not collected.removed:
        return "\n".join(lines)
    made = table("blob", "size", right=("size",))
    for blob in collected.removed:
        made.add_row(blob.digest, size(blob.size))
    return Group(made, *lines)


def _blobs(count: int) -> str:
    return "1 blob" if count == 1 else f"{count:,} blobs"
