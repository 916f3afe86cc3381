"""How deep and how wide a draft tree is."""

from __future__ import annotations

from dataclasses import dataclass

from services.generation.drafting.draft_tree.nodes import MOST_COPIED
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Budget
from services.generation.engine.request import EngineRequest

_DEPTH = 16  # at most, where a request does not say k; the cost model ends most drafts long before


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Bounds of a draft tree. Nodes are verified if their probability pays for their row.

    Each expanded node gets `width` children, and `width` nodes are expanded at each depth: 1 is a chain.
    """

    depth: int
    width: int
    tree_tokens: int  # draft tokens verified at most

    @classmethod
    def for_device(cls, cost: PassCost) -> DraftShape:
        """The cheaper a row is beside a whole pass, the wider."""
        share = cost.row_share
        width = 2 if share > 0.03 else 4 if share > 0.01 else 8
        # A row may cost nothing as far as could be measured; 60 tokens are the most.
        return cls(depth=_DEPTH, width=width, tree_tokens=max(8, int(2.0 / max(share, 1 / 30))))

    def within(self, budget: Budget) -> DraftShape:
        return DraftShape(min(self.depth, budget.depth), self.width, min(self.tree_tokens, budget.nodes))

    def for_request(self, request: EngineRequest) -> DraftShape:
        asked = request.parameters
        return DraftShape(
            self.depth if request.k is None else request.k,
            asked.get("tree_width", self.width),
            asked.get("tree_tokens", MOST_COPIED if request.prediction else self.tree_tokens),
        )
