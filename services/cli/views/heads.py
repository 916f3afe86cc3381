"""Heads for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from ledger.documents.draft_head_manifest import DraftHeadManifest
from services.cli.output import MARKS, short, size, table
from services.client.heads import Head, KScore


def head_json(head: Head) -> dict[str, Any]:
    """Identifiers in full; the manifest as it reads."""
    return {
        "head_cid": head.head_cid,
        "base_cid": head.base_cid,
        "size": head.size,
        "names": list(head.names),
        "publications": [
            {
                "name": each.name,
                "publisher": each.publisher,
                "issued_at": each.issued_at.isoformat(),
                "ledger_index": each.ledger_index,
            }
            for each in head.publications
        ],
        "withdrawal": None
        if head.withdrawal is None
        else {
            "reason": head.withdrawal.reason,
            "issued_at": head.withdrawal.issued_at.isoformat(),
            "ledger_index": head.withdrawal.ledger_index,
        },
        "kscores": [
            {
                "adapter_cid": score.adapter_cid,
                "mean_acceptance": score.mean_acceptance,
                "status": score.status,
                "ledger_index": score.ledger_index,
            }
            for score in head.kscores
        ],
        "manifest": DraftHeadManifest.from_bytes(head.manifest).to_document(),
    }


def list_view(heads: Iterable[Head]) -> RenderableType:
    """One line a head."""
    made = table("name", "head", "base", "size", "publisher", "k-score", "", right=("size", "k-score"))
    for head in heads:
        made.add_row(
            escape(", ".join(head.names)),
            short(head.head_cid),
            short(head.base_cid),
            size(head.size),
            escape(head.publications[0].publisher),
            _score(head.kscores[0]) if head.kscores else "[dim]–[/]",
            "[red]withdrawn[/]" if head.withdrawal else "",
        )
    return made


def show_view(head: Head) -> RenderableType:
    """All that is on record about one head."""
    manifest = DraftHeadManifest.from_bytes(head.manifest)
    made = table("", "")
    made.show_header = False
    made.add_row("head", head.head_cid)
    made.add_row("base", head.base_cid)
    layers = ", ".join(map(str, manifest.feature_layers))
    made.add_row("reads", f"features of layers {layers}, drafts {manifest.draft_vocab_size} of {manifest.vocab_size}")
    for part in manifest.files:
        made.add_row(escape(part.name), f"{size(part.size)}, {part.digest}")
    for each in head.publications:
        made.add_row("published", f"{escape(each.name)} by {escape(each.publisher)}, entry {each.ledger_index}")
    for score in head.kscores:
        who = "the bare base" if score.adapter_cid is None else score.adapter_cid
        made.add_row("k-score", f"{_score(score)} for {who}, entry {score.ledger_index}")
    if head.withdrawal is not None:
        made.add_row("[red]withdrawn[/]", f"{escape(head.withdrawal.reason)}, entry {head.withdrawal.ledger_index}")
    return made


def checked_view(titles: Iterable[str], passed: Iterable[bool | None]) -> RenderableType:
    """A checklist."""
    made = table("", "")
    made.show_header = False
    for title, mark in zip(titles, passed, strict=True):
        made.add_row(MARKS[mark], escape(title))
    return made


def _score(score: KScore) -> str:
    style = "green" if score.status == "GOOD" else "yellow"
    words = "" if score.status == "GOOD" else " needs retraining"
    return f"[{style}]{score.mean_acceptance:.2f}{words}[/]"
