"""A draft tree while it grows: expanded by cumulative probability, then ranked again, and cut to what pays.

After EAGLE-2 (Li et al. 2024, §4). What is added: probabilities are those that were measured, and the size of the tree
follows from what rows and steps cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.generation.drafting.eagle3.confidence import Confidence
from services.generation.drafting.eagle3.shape import DraftShape
from services.generation.engine.tree import TokenTree

_FOREIGN = -1.0  # the share of a candidate that the head has said nothing about


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds: of a pass for each token it would emit without drafts, of one more row in it, and of the head's own
    steps.
    """

    token: float
    row: float
    step: float  # of one head step, this sequence's share
    step_row: float  # of one more row in it


@dataclass(slots=True)
class Growth:
    """Candidates for one sequence's draft. Node 0 is the root; a node's `chance` is that all of its path holds."""

    shape: DraftShape
    confidence: Confidence
    prices: Prices
    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    chances: list[float] = field(default_factory=lambda: [1.0])
    shares: list[float] = field(default_factory=lambda: [1.0])
    ranks: list[int] = field(default_factory=lambda: [0])
    below: dict[tuple[int, int], int] = field(default_factory=dict)  # nodes by parent and token
    steps: int = 0  # of the head, so far
    frontier: list[int] = field(default_factory=lambda: [0])  # nodes whose children come next
    sources: list[int] = field(default_factory=lambda: [0])  # where their parents stood in the frontier before

    def worth_starting(self, beside: float = 0.0) -> bool:
        """Whether a chain of first choices, as often as those have held, gains more than it costs at some depth.

        `beside` are tokens that are expected to hold without the head: where it would say no more, it need not run.
        """
        chance, emitted, seconds, prices = 1.0, 1.0, self.prices.token, self.prices
        pays = False
        for depth in range(1, self.shape.depth + 1):
            chance *= self.confidence.first_choice(depth)
            emitted += chance
            seconds += prices.step + prices.step_row + prices.row
            pays = pays or emitted * prices.token > seconds
        return pays and emitted - 1.0 > beside

    def take(self, tokens: list[list[int]], shares: list[list[float]]) -> None:
        """The children of the frontier's nodes, best first, and the next frontier: empty where growing has ended."""
        depth, newest = self.depths[self.frontier[0]] + 1, []
        self.steps += 1
        for node, children, given in zip(self.frontier, tokens, shares, strict=True):
            for rank, (token, share) in enumerate(zip(children, given, strict=True)):
                if token < 0:
                    break
                chance = self.chances[node] * self.confidence.acceptance(share, depth)
                newest.append(self._add(node, token, chance, share, rank))
        before = {node: place for place, node in enumerate(self.frontier)}
        self.frontier = self._next_frontier(newest, depth + 1)
        self.sources = [before[self.parents[node]] for node in self.frontier]

    def _add(self, parent: int, token: int, chance: float, share: float, rank: int) -> int:
        """A candidate; one that two sources name has the better of their chances."""
        node = self.below.setdefault((parent, token), len(self.tokens))
        if node < len(self.tokens):
            self.chances[node] = max(self.chances[node], chance)
            self.shares[node], self.ranks[node] = share, rank
            return node
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.chances.append(chance)
        self.shares.append(share)
        self.ranks.append(rank)
        return node

    def graft(self, tree: TokenTree, chances: list[float]) -> None:
        """Candidates from elsewhere, before the head's own, with the chance of each node's path."""
        place = {0: 0}
        for node in range(1, len(tree)):
            place[node] = self._add(place[tree.parents[node]], tree.tokens[node], chances[node], _FOREIGN, 0)

    def _next_frontier(self, nodes: list[int], depth: int) -> list[int]:
        """The likeliest of the newest nodes, those that are worth the head's row and all together worth its step."""
        if depth > self.shape.depth or not nodes:
            return []
        _, emitted, seconds = self._chosen()
        prices, next_choice = self.prices, self.confidence.first_choice(depth)
        worth = seconds / emitted  # of one more token
        best = sorted(nodes, key=lambda node: -self.chances[node])[: self.shape.width]
        best = [n for n in best if self.chances[n] * next_choice * worth > prices.step_row + prices.row]
        gain = sum(self.chances[n] * next_choice * worth - prices.step_row - prices.row for n in best)
        return best if gain > prices.step else []

    def _chosen(self) -> tuple[list[int], float, float]:
        """Nodes that pay for their rows, best first; the tokens a pass over them emits; the seconds it takes."""
        emitted, seconds = 1.0, self.prices.token + self.steps * self.prices.step
        chosen: list[int] = []
        for node in sorted(range(1, len(self.tokens)), key=lambda node: -self.chances[node]):
            pays = self.chances[node] * seconds > emitted * self.prices.row
            if not pays or len(chosen) == self.shape.tree_tokens:
                break
            chosen.append(node)
            emitted += self.chances[node]
            seconds += self.prices.row
        return chosen, emitted, seconds

    def tree(self) -> TokenTree:
        """The nodes that pay, the path of first choices in front: it then lies in one run with the committed tokens."""
        chosen = set(self._chosen()[0])
        trunk, children = [0], self._children(chosen)
        while children.get(trunk[-1]):
            trunk.append(max(children[trunk[-1]], key=lambda node: self.chances[node]))
        order = [*trunk, *sorted(chosen.difference(trunk))]
        place = {node: i for i, node in enumerate(order)}
        parents = tuple(-1 if node == 0 else place[self.parents[node]] for node in order)
        return TokenTree(tuple(self.tokens[node] for node in order), parents)

    def _children(self, chosen: set[int]) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for node in chosen:
            children.setdefault(self.parents[node], []).append(node)
        return children

    def judge(self, emitted: list[int]) -> None:
        """Compare all candidates, verified or not, with what was emitted after the root."""
        held = {0}
        for node in range(1, len(self.tokens)):
            depth = self.depths[node]
            if self.parents[node] not in held or depth > len(emitted):
                continue
            right = self.tokens[node] == emitted[depth - 1]
            if self.shares[node] != _FOREIGN:
                self.confidence.record(self.shares[node], self.ranks[node], depth, right)
            if right:
                held.add(node)
