"""How well a head drafts, bare and under adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape

from services.cli.terminal.output import table

if TYPE_CHECKING:
    from services.cli.jobs.heads.scoring import Scored


def scores_json(scores: Sequence[Scored]) -> list[dict[str, Any]]:
    """The documents that were signed, or would be, with their adapters' names and places in the ledger."""
    return [each.score.to_document() | {"adapter": each.adapter, "ledger_index": each.ledger_index} for each in scores]


def scores_view(scores: Sequence[Scored]) -> RenderableType:
    """One line for each adapter, the bare base first."""
    made = table("adapter", "accepted", "by depth", "length", "", "entry", right=("accepted", "length", "entry"))
    for each in scores:
        score = each.score
        made.add_row(
            escape(each.adapter or "none"),
            f"{score.mean_acceptance:.2f}",
            " ".join(f"{share:.2f}" for share in score.acceptance_by_depth),
            f"{score.mean_acceptance_length:.2f}",
            "[green]good[/]" if score.status == "GOOD" else "[yellow]needs retraining[/]",
            "–" if each.ledger_index is None else str(each.ledger_index),
        )
    return made
