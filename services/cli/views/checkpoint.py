"""A signed tree head, for people and for programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from services.cli.jobs.trust import load_trusted
from services.cli.output import MARKS, table
from services.client.log import SignedCheckpoint


def head_json(signed: SignedCheckpoint, trusted: Path) -> dict[str, Any]:
    """Raises SignatureError, FormatError where the checkpoint is not one of a trusted log."""
    checkpoint, checked = _open(signed, trusted)
    return {
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root.hex(),
        "signature_checked": checked,
        "checkpoint": signed.note.decode("utf-8"),
    }


def head_view(signed: SignedCheckpoint, trusted: Path) -> RenderableType:
    """Raises as `head_json` does."""
    checkpoint, checked = _open(signed, trusted)
    made = table("", "")
    made.show_header = False
    made.add_row("origin", escape(checkpoint.origin))
    made.add_row("entries", str(checkpoint.size))
    made.add_row("root", checkpoint.root.hex())
    signature = "by a trusted key of the log" if checked else f"not checked: no trusted keys in {trusted}"
    made.add_row("signature", f"{MARKS[checked or None]} {escape(signature)}")
    return made


def _open(signed: SignedCheckpoint, trusted: Path) -> tuple[Checkpoint, bool]:
    """The checkpoint, and whether there were keys to check its signature with."""
    if not trusted.is_dir():
        return Checkpoint.from_text(Note.from_bytes(signed.note).text), False
    return open_checkpoint(signed.note, load_trusted(trusted).keys("log")), True
