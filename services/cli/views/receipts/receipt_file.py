"""Results of `kolm verify` on a receipt file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.terminal.output import MARKS
from services.cli.views.receipts.bundle import proof_json, proof_view

if TYPE_CHECKING:
    from services.cli.jobs.receipts.receipt_file import CheckedReceipt


def receipt_file_json(found: CheckedReceipt) -> dict[str, Any]:
    """`promises` are those that the receipt keeps; `overclaim` is what is said of a speedup that cannot be measured;
    `texts` is null where no model's tokenizer has compared them with the tokens.
    """
    document = found.document
    return {
        "ok": True,
        "receipt": document.to_document(),
        "overclaim": document.overclaim,
        "proof": proof_json(found.place),
        "promises": [promise.to_document() for promise in found.promises],
        "texts": None if found.texts is None else found.texts.same,
    }


def receipt_file_view(found: CheckedReceipt) -> RenderableType:
    """The receipt's subject, its place in the log, and the promises that it keeps."""
    document, texts = found.document, found.texts
    sampled = document.sampling
    said = (
        f"signed on {document.issued_at}: {document.prompt.tokens} tokens of this prompt gave these "
        f"{document.output.tokens} tokens, at temperature {sampled.temperature:g} with seed {sampled.seed}, "
        f"by {document.spec_decode.method} on {document.base_cid[:22]}…"
    )
    kept = [
        f"keeps the promise of {promise.promised_at} for request {promise.request_id}, as choice {sampled.choice} of "
        f"{promise.choices}"
        for promise in found.promises
    ]
    over = [] if document.overclaim is None else [Text(f"the receipt {document.overclaim}", style="yellow")]
    lines = (Text(line, style="green") for line in kept)
    compared = [] if texts is None else [Text.from_markup(f"{MARKS[texts.same]} {texts.said}")]
    return Group(Text(said, style="green"), *compared, *over, proof_view(found.place), *lines)
