"""What `kolm verify` found of a receipt file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ledger.documents.receipt import Receipt
from services.cli.views.bundle import proof_json, proof_view

if TYPE_CHECKING:
    from services.cli.jobs.bundle_verification import ProvenEntry


def receipt_file_json(document: Receipt, place: ProvenEntry) -> dict[str, Any]:
    return {"ok": True, "receipt": document.to_document(), "proof": proof_json(place)}


def receipt_file_view(document: Receipt, place: ProvenEntry) -> RenderableType:
    """Two sentences: what the receipt is about, and where it stands."""
    sampled = document.sampling
    said = (
        f"signed on {document.issued_at}: {document.prompt.tokens} tokens of this prompt gave these "
        f"{document.output.tokens} tokens, at temperature {sampled.temperature:g} with seed {sampled.seed}, "
        f"by {document.spec_decode.method} on {document.base_cid[:22]}…"
    )
    return Group(Text(said, style="green"), proof_view(place))
