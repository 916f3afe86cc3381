"""A signed checkpoint of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape

from services.cli.terminal.output import MARKS, facts

if TYPE_CHECKING:
    from services.cli.jobs.trust import OpenedCheckpoint


def checkpoint_json(opened: OpenedCheckpoint) -> dict[str, Any]:
    """Its members, and the signed note as text."""
    return {
        "origin": opened.checkpoint.origin,
        "size": opened.checkpoint.size,
        "root": opened.checkpoint.root.hex(),
        "signature_checked": opened.checked,
        "checkpoint": opened.note.decode("utf-8"),
    }


def checkpoint_view(opened: OpenedCheckpoint) -> RenderableType:
    """Its members, and whether its signature was checked."""
    unchecked = f"not checked: no trusted keys in {opened.trusted}"
    signature = "by a trusted key of the log" if opened.checked else unchecked
    return facts(
        ("origin", escape(opened.checkpoint.origin)),
        ("entries", str(opened.checkpoint.size)),
        ("root", opened.checkpoint.root.hex()),
        ("signature", f"{MARKS[opened.checked or None]} {escape(signature)}"),
    )
