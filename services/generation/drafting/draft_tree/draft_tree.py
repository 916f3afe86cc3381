"""A draft tree for one sequence while it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from services.generation.drafting.acceptance import PREDICTED, Float64, Int64, RequestAcceptance, first_choice
from services.generation.drafting.copies import Copies
from services.generation.drafting.draft_tree import nodes as compiled
from services.generation.drafting.draft_tree.nodes import MOST_COPIED, NODE, NONE, Bounds, Costs, Level
from services.generation.drafting.draft_tree.shape import DraftShape
from services.generation.engine.drafter import Budget
from services.generation.engine.tree import TokenTree


class DraftTree:
    """Candidates under the last token, from any number of sources. Node 0 is the root.

    Copies come first. Then a model's tokens are added level by level: `expand` takes those below the nodes of
    `frontier`, until the frontier is empty.
    """

    def __init__(
        self, root: int, acceptance: RequestAcceptance, shape: DraftShape, costs: Costs, *, room: int | None = None
    ) -> None:
        """`room`: nodes beside copies; by default as many as a model may add."""
        self.shape, self.costs = shape, costs
        self.frontier: Int64 = np.zeros(1, np.int64)  # nodes whose children come next
        self._acceptance, self._rates = acceptance, acceptance.rates()
        if room is None:
            room = (shape.width + MOST_ASKED) * (1 + max(0, shape.depth - 1) * shape.width)
        self._nodes, self._count = np.empty(1 + MOST_COPIED + room, NODE), 1
        self.steps = 0  # levels that a model has said
        self._nodes[0] = (root, -1, 0, NONE, 0, 0, NONE, NONE, 0, 1.0, 1.0)

    def __len__(self) -> int:
        """Candidates, the root included."""
        return self._count

    @property
    def root(self) -> int:
        return int(self._nodes["token"][0])

    @property
    def nodes(self) -> compiled.Nodes:
        """[candidates], see `nodes.NODE`."""
        return self._nodes[: self._count]

    def add(self, sources: Sequence[Copies], budget: Budget, least: float | None = None, most: int = 64) -> None:
        """Add copies, the best sources first: at most `most` with ends of their own, as deep as they hold with
        probability `least` (by default the budget's breakeven).
        """
        least = budget.breakeven if least is None else least
        for copies in sources:
            self._count, apart = compiled.add_copies(
                self._nodes, self._count, copies.tokens, copies.lengths, copies.source,
                Bounds(most, budget.depth, least), self._rates,
            )  # fmt: skip
            most -= apart
        compiled.rank_copies(self._nodes, self._count, self._rates)

    def add_by(self, source: Callable[[compiled.Nodes, int, Bounds, Float64], int], budget: Budget) -> None:
        """Let a source that is compiled add nodes within bounds: nodes [any], how many there are, bounds, rates [kinds]
        to how many there are then.
        """
        bounds = Bounds(len(self._nodes), budget.depth, budget.breakeven)
        self._count = source(self._nodes, self._count, bounds, self._rates)

    def worth_expanding(self) -> bool:
        """Whether a chain of a model's first choices is expected to gain more than it costs. A tree that already has
        the caller's prediction leaves less to gain.
        """
        costs, nodes = self.costs, self.nodes
        predicted = nodes[(nodes["copy"] == PREDICTED) & (nodes["parent"] == 0)]
        chance = 1.0 - predicted["chance"].sum() if len(predicted) else 1.0
        emitted, seconds = 1.0, costs.shares[0]
        if len(predicted):
            _, emitted, seconds = compiled.chosen(nodes, len(nodes), self.shape.tree_tokens, 0, costs)
        gain = 0.0
        for depth in range(1, min(self.shape.depth + 1, len(costs.shares))):
            chance *= self._rates[first_choice(depth)]
            gain += chance
            more = costs.shares[depth] - costs.shares[0] + depth * (costs.step + costs.step_row)
            if gain * seconds > emitted * more:
                return True
        return False

    def asked(self) -> Int64:
        """Copies below the frontier's nodes, to ask the model about: [frontier, MOST_ASKED], -1 for none."""
        asked = np.empty((len(self.frontier), MOST_ASKED), np.int64)
        compiled.copies_below(self._nodes, self._count, self.frontier, asked)
        return asked

    def expand(self, level: Level) -> None:
        """Add the model's tokens below the frontier's nodes, and go on to the next frontier."""
        self.steps += 1
        self._count, newest = compiled.expand(self._nodes, self._count, self.frontier, level, self._rates)
        if self.steps == self.shape.depth:
            newest = newest[:0]
        self.frontier = compiled.next_frontier(
            self._nodes, self._count, newest, self.shape.width, self.shape.tree_tokens, self.steps, self.costs,
            self._rates,
        )  # fmt: skip

    def token_tree(self) -> TokenTree:
        """The nodes that pay for their rows."""
        best, _, _ = compiled.chosen(self._nodes, self._count, self.shape.tree_tokens, self.steps, self.costs)
        order, parents = compiled.ordered(self._nodes, self._count, best)
        tokens, predicted = self._nodes["token"][order], self._nodes["copy"][order] == PREDICTED
        return TokenTree(tuple(tokens.tolist()), tuple(parents.tolist()), frozenset(predicted.nonzero()[0].tolist()))

    def judge(self, emitted: Sequence[int]) -> None:
        """Compare all candidates, verified or not, with what was emitted after the root."""
        self._acceptance.record(*compiled.judged(self._nodes, self._count, np.array(emitted, np.int64)))


MOST_ASKED = 4  # copies below a node that a model is asked about
