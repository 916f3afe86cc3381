"""Results of `kolm verify` on a statement in another format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.terminal.output import outcome

if TYPE_CHECKING:
    from ledger.bundle.proven_statement import ProvenStatement


def statement_json(stated: ProvenStatement) -> dict[str, Any]:
    """`verdicts` are the issuer's word; null where the format has none."""
    verdicts = None if stated.verdicts is None else [{"entry": at, "outcome": found} for at, found in stated.verdicts]
    return {
        "ok": True,
        "issuer": stated.issuer.key_id,
        "receipt": stated.receipt.to_document(),
        "index": stated.index,
        "origin": stated.origin,
        "size": stated.size,
        "cosigned": list(stated.cosigned),
        "verdicts": verdicts,
    }


def statement_view(stated: ProvenStatement) -> RenderableType:
    """The signer, the statement and its place."""
    receipt = stated.receipt
    lines = [
        Text(f"stated by {stated.issuer.key_id[:20]}…, a key that you trust", style="green"),
        Text(f"receipt {receipt.receipt_id} of {receipt.issued_at}, signed by its issuer", style="green"),
        Text(
            f"entry {stated.index} of {stated.origin} is this receipt, by the log's signature over {stated.size} "
            f"entries, cosigned by {', '.join(stated.cosigned) or 'no witness'}",
            style="green",
        ),
    ]
    if stated.verdicts is not None:
        said = ", ".join(f"{outcome(found)} (entry {at})" for at, found in stated.verdicts) or "none"
        lines.append(Text.from_markup(f"verdicts, by the word of who states it: {said}"))
    return Group(*lines)
