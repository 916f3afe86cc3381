"""A promise of receipts, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape

from ledger.audit.fulfilment import Fulfilment
from services.cli.terminal.output import facts

if TYPE_CHECKING:
    from services.client.ledger.promised import Promised

_SAID = {
    "KEPT": "[green]KEPT[/]: the log holds every promised receipt",
    "OPEN": "[bold]OPEN[/]: not all of the receipts are in the log, and they are not due yet",
    "BROKEN": "[bold red]BROKEN[/]: receipts are due, and proven to be missing from the log",
}


_ANSWERED = (
    "[bold red]BROKEN[/]: receipts are due, and, as the log has signed (`--answer FILE` keeps it), not in its tree"
)


def promised_json(found: Promised) -> dict[str, Any]:
    """The document, the state, and the entries by choice."""
    answer = None if found.answer is None else found.answer.answer.to_document()
    return {"state": found.state, "tree_size": found.tree_size, "answer": answer} | fulfilment_json(found.fulfilment)


def fulfilment_json(found: Fulfilment) -> dict[str, Any]:
    """The document, and the entries and finish reasons by choice."""
    return {
        "entries": {str(choice): index for choice, index in sorted(found.entries.items())},
        "finish_reasons": {str(choice): ending for choice, ending in sorted(found.endings.items())},
        "missing": found.missing,
        "document": found.promise.to_document(),
    }


def promised_view(found: Promised) -> RenderableType:
    """The promise, each choice, and the state."""
    promise, places, endings = found.fulfilment.promise, found.fulfilment.entries, found.fulfilment.endings
    rows = [
        ("promised", f"{promise.promised_at} for {escape(promise.tenant)}, due {promise.due}"),
        ("request", escape(promise.request_id)),
        ("nonce", "none" if promise.nonce is None else escape(promise.nonce)),
        ("prompt", f"{promise.prompt.tokens} tokens, commitment {promise.prompt.commitment}"),
    ]
    for choice in range(promise.choices):
        where = f"entry {places[choice]}, ended by {endings[choice]}" if choice in places else "not in the log"
        rows.append((f"choice {choice}", where))
    said = _SAID[found.state] if found.answer is None else _ANSWERED
    return facts(*rows, ("state", f"{said} of {found.tree_size} entries"))
