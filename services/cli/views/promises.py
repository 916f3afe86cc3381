"""A promise of receipts, and what became of it."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from services.cli.jobs.promises import Promised
from services.cli.output import facts

_SAID = {
    "KEPT": "[green]KEPT[/]: the log holds every promised receipt",
    "OPEN": "[bold]OPEN[/]: not all of the receipts are in the log, and they are not due yet",
    "BROKEN": "[bold red]BROKEN[/]: receipts are due, and proven to be missing from the log",
}


def promised_json(found: Promised) -> dict[str, Any]:
    """The document, the state, and the entries by choice."""
    return {
        "state": found.state,
        "entries": {str(choice): index for choice, index in sorted(found.entries.items())},
        "finish_reasons": {str(choice): ending for choice, ending in sorted(found.endings.items())},
        "missing": found.missing,
        "tree_size": found.tree_size,
        "document": found.promise.to_document(),
    }


def promised_view(found: Promised) -> RenderableType:
    """The promise, each choice, and the state."""
    promise = found.promise
    rows = [
        ("promised", f"{promise.promised_at} for {escape(promise.tenant)}, due {promise.due}"),
        ("request", escape(promise.request_id)),
        ("nonce", "none" if promise.nonce is None else escape(promise.nonce)),
        ("prompt", f"{promise.prompt.tokens} tokens, commitment {promise.prompt.commitment}"),
    ]
    for choice in range(promise.choices):
        kept = choice in found.entries
        place = f"entry {found.entries[choice]}, ended by {found.endings[choice]}" if kept else "not in the log"
        rows.append((f"choice {choice}", place))
    return facts(*rows, ("state", f"{_SAID[found.state]} of {found.tree_size} entries"))
