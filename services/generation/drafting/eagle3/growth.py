"""Draft trees while they grow, see `growing`: their arrays, and one of them as an object."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.generation.drafting.eagle3 import growing
from services.generation.drafting.eagle3.confidence import Confidence, Float64
from services.generation.drafting.eagle3.growing import Int64, Tree
from services.generation.drafting.eagle3.rounds import Trees
from services.generation.drafting.eagle3.shape import DraftShape
from services.generation.engine.tree import TokenTree

_SPARE = 64  # candidates from elsewhere that a tree of its own has room for


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds: of a pass for each token it would emit without drafts, of one more row in it, and of the head's own
    steps.
    """

    token: float
    row: float
    step: float  # of one head step, this sequence's share
    step_row: float  # of one more row in it


def worth_starting(shape: DraftShape, confidence: Confidence, prices: Prices, beside: float = 0.0) -> bool:
    """See `growing.worth_starting`."""
    step = prices.step + prices.step_row
    return growing.worth_starting(shape.depth, prices.token, prices.row, step, confidence.counts, beside)


class Forest:
    """Arrays of the trees of several sequences, a line for each; what they hold says `growing.Tree`."""

    def __init__(self, lines: int, shape: DraftShape, grafted: int) -> None:
        """`shape` bounds all trees; `grafted` are the candidates from elsewhere that one of them gets at most."""
        nodes = 1 + grafted + shape.width + max(0, shape.depth - 1) * shape.width**2
        self.nodes = np.empty((lines, nodes, 7), np.int64)
        self.odds = np.empty((lines, nodes, 3))
        self.state, self.bounds = np.zeros((lines, 4), np.int64), np.empty((lines, 3), np.int64)
        self.frontier, self.sources = np.zeros((2, lines, shape.width), np.int64)
        self.prices = np.empty((lines, 4))

    def plant(self, line: int, shape: DraftShape, confidence: Confidence, prices: Prices, root: int) -> Growth:
        """A tree of one node, which is its frontier."""
        self.nodes[line, 0] = root, -1, 0, 0, 0, -1, 0
        self.odds[line, 0] = 1.0
        self.state[line] = 1, 0, 1, 0
        self.bounds[line] = shape.depth, shape.width, shape.tree_tokens
        self.prices[line] = prices.token, prices.row, prices.step, prices.step_row
        return Growth(Tree(
            self.nodes[line], self.odds[line], self.state[line], self.frontier[line], self.sources[line],
            self.bounds[line], self.prices[line], confidence.counts,
        ))  # fmt: skip

    def trees(self, counts: Float64, whose: list[int]) -> Trees:
        """All of them; `counts` [confidences, …] holds what they count in, of which line i takes whose[i]."""
        return Trees(
            self.nodes, self.odds, self.state, self.frontier, self.sources, self.bounds, self.prices, counts,
            np.array(whose),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Growth:
    """Candidates for one sequence's draft. Node 0 is the root."""

    arrays: Tree

    @classmethod
    def alone(cls, shape: DraftShape, confidence: Confidence, prices: Prices, root: int) -> Growth:
        return Forest(1, shape, _SPARE).plant(0, shape, confidence, prices, root)

    @property
    def frontier(self) -> list[int]:
        """Nodes whose children come next."""
        frontier: list[int] = self.arrays.frontier[: self.arrays.state[growing.FRONTIER]].tolist()
        return frontier

    @property
    def root(self) -> int:
        return int(self.arrays.nodes[0, growing.TOKEN])

    @property
    def chances(self) -> list[float]:
        """That all of a node's path holds, for each node."""
        chances: list[float] = self.arrays.odds[: self.arrays.state[growing.NODES], growing.CHANCE].tolist()
        return chances

    def take(self, tokens: list[list[int]], shares: list[list[float]]) -> None:
        """The children of the frontier's nodes, best first."""
        growing.take(self.arrays, np.array(tokens, np.int64), np.array(shares, np.float32))

    def graft(self, tokens: Int64, parents: Int64, chances: Float64) -> None:
        """Candidates from elsewhere, before the head's own, with the chance of each node's path; node 0 is the root."""
        growing.graft(self.arrays, tokens, parents, chances)

    def tree(self) -> TokenTree:
        """The nodes that pay."""
        tokens, parents = growing.ordered(self.arrays)
        return TokenTree(tuple(tokens.tolist()), tuple(parents.tolist()))

    def judge(self, emitted: list[int]) -> None:
        """Compare all candidates, verified or not, with what was emitted after the root."""
        growing.judge(self.arrays, np.array(emitted, np.int64))
