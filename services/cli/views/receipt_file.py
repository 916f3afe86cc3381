"""Results of `kolm verify` on a receipt file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ledger.documents.promise import Promise
from ledger.documents.receipt import Receipt
from services.cli.views.bundle import proof_json, proof_view

if TYPE_CHECKING:
    from ledger.bundle.proven_entry import ProvenEntry


def receipt_file_json(document: Receipt, place: ProvenEntry, promises: Sequence[Promise]) -> dict[str, Any]:
    """`promises` are those that the receipt keeps; `overclaim` is what is said of a speedup that cannot be measured."""
    return {
        "ok": True,
        "receipt": document.to_document(),
        "overclaim": document.overclaim,
        "proof": proof_json(place),
        "promises": [promise.to_document() for promise in promises],
    }


def receipt_file_view(document: Receipt, place: ProvenEntry, promises: Sequence[Promise]) -> RenderableType:
    """The receipt's subject, its place in the log, and the promises that it keeps."""
    sampled = document.sampling
    said = (
        f"signed on {document.issued_at}: {document.prompt.tokens} tokens of this prompt gave these "
        f"{document.output.tokens} tokens, at temperature {sampled.temperature:g} with seed {sampled.seed}, "
        f"by {document.spec_decode.method} on {document.base_cid[:22]}…"
    )
    kept = [
        f"keeps the promise of {promise.promised_at} for request {promise.request_id}, as choice {sampled.choice} of "
        f"{promise.choices}"
        for promise in promises
    ]
    over = [] if document.overclaim is None else [Text(f"the receipt {document.overclaim}", style="yellow")]
    lines = (Text(line, style="green") for line in kept)
    return Group(Text(said, style="green"), *over, proof_view(place), *lines)
