"""Results of `kolm verify` on a SCITT statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from ledger.bundle.proven_statement import ProvenStatement


def statement_json(stated: ProvenStatement) -> dict[str, Any]:
    """The signer, the receipt and its place."""
    return {
        "ok": True,
        "issuer": stated.issuer.key_id,
        "receipt": stated.receipt.to_document(),
        "index": stated.index,
        "origin": stated.origin,
        "size": stated.size,
    }


def statement_view(stated: ProvenStatement) -> RenderableType:
    """The signer, the statement and its place."""
    receipt = stated.receipt
    lines = [
        Text(f"stated by {stated.issuer.key_id[:20]}…, a key that you trust", style="green"),
        Text(f"receipt {receipt.receipt_id} of {receipt.issued_at}, signed by its issuer", style="green"),
        Text(
            f"entry {stated.index} of {stated.origin} is this receipt, by the log's signature over "
            f"{stated.size} entries",
            style="green",
        ),
    ]
    return Group(*lines)
