"""The draft tree of one sequence under construction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.drafting.acceptance import PREDICTED, RequestAcceptance
from services.generation.drafting.copies import Copies
from services.generation.drafting.draft_tree import nodes as compiled
from services.generation.drafting.draft_tree.candidates import (
    MOST_ASKED,
    NO_CONFIDENCE,
    DraftShape,
    ModelOutput,
    Samplings,
    Vocabulary,
    grow,
    sampling_of,
)
from services.generation.drafting.draft_tree.nodes import MOST_COPIED, NODE, NONE, Bounds, Growth
from services.generation.engine.drafter import Budget
from services.generation.engine.economics import Costs, Economics
from services.generation.engine.request import EngineRequest
from services.generation.engine.sampling.processors import LogitsProcessors, end_ids
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32, Float64, Int64


class DraftTree:
    """Candidates under the last token, from any number of sources. Node 0 is the root.

    Copies come first. Then a model's tokens are added level by level, below the nodes of `frontier`, until that is
    empty.
    """

    def __init__(
        self, root: int, acceptance: RequestAcceptance, shape: DraftShape, costs: Costs, *, room: int | None = None
    ) -> None:
        """`room`: the most nodes that are not copies; by default as many as a model may add."""
        self.shape, self.economics = shape, Economics(costs, acceptance.rates())
        self.frontier: Int64 = np.zeros(1, np.int64)  # nodes whose children come next
        self._acceptance = acceptance
        if room is None:
            room = (shape.width + MOST_ASKED) * (1 + max(0, shape.depth - 1) * shape.width)
        self._nodes, self._count = np.empty(1 + MOST_COPIED + room, NODE), 1
        self.steps = 0  # levels that a model has added
        self._nodes[0] = (root, -1, 0, NONE, 0, 0, NONE, NONE, 0, 1.0, 1.0)

    def __len__(self) -> int:
        """The number of candidates, the root included."""
        return self._count

    @property
    def room(self) -> int:
        """The most candidates that the tree can have, the root included."""
        return len(self._nodes)

    @property
    def root(self) -> int:
        return int(self._nodes["token"][0])

    @property
    def nodes(self) -> compiled.Nodes:
        """[candidates], see `nodes.NODE`."""
        return self._nodes[: self._count]

    def add(self, sources: Sequence[Copies], budget: Budget, most: int = 64) -> None:
        """Add copies, the best sources first: at most `most` distinct branches, each as deep as its probability of
        acceptance is at least the budget's breakeven.
        """
        for copies in sources:
            self._count, apart = compiled.add_copies(
                self._nodes, self._count, copies.tokens, copies.lengths, copies.source,
                Bounds(most, budget.depth, budget.breakeven), self.economics.rates,
            )  # fmt: skip
            most -= apart
        compiled.rank_copies(self._nodes, self._count, self.economics.rates)

    def add_by(self, source: Callable[[compiled.Nodes, int, Bounds, Float64], int], budget: Budget) -> None:
        """Let a compiled source add nodes within bounds. It takes nodes [any], their number, bounds and rates [kinds],
        and returns the new number of nodes.
        """
        bounds = Bounds(len(self._nodes), budget.depth, budget.breakeven)
        self._count = source(self._nodes, self._count, bounds, self.economics.rates)

    def worth_expanding(self) -> bool:
        """Whether a chain of a model's first choices is expected to gain more than it costs. A tree that already has
        the caller's prediction leaves less to gain.
        """
        shape = self.shape
        return compiled.expected_chain(self._nodes, self._count, shape.depth, shape.tree_tokens, self.economics) > 0

    def expand(
        self, logits: Float32, vocabulary: Vocabulary, sampling: Samplings, confidence: Float32 = NO_CONFIDENCE
    ) -> None:
        """Add a model's tokens below the frontier's nodes, and go on to the next frontier. logits [frontier, draft
        vocabulary] C-contiguous; `confidence` [frontier]: the model's own confidence in its first choices, if any.
        """
        self.steps += 1
        growth = Growth(self.shape.width, self.shape.tree_tokens, self.steps, self.steps == self.shape.depth)
        self._count, self.frontier = grow(
            self._nodes, self._count, self.frontier, ModelOutput(logits, confidence, vocabulary, sampling), growth,
            self.economics,
        )  # fmt: skip

    def token_tree(self) -> TokenTree:
        """The tree of those nodes that are worth their rows in a pass."""
        best = compiled.choose(self._nodes, self._count, self.shape.tree_tokens, self.steps, self.economics)
        order, parents = compiled.ordered(self._nodes, self._count, best)
        tokens, predicted = self._nodes["token"][order], self._nodes["copy"][order] == PREDICTED
        return TokenTree(tuple(tokens.tolist()), tuple(parents.tolist()), frozenset(predicted.nonzero()[0].tolist()))

    def judge(self, emitted: Sequence[int]) -> None:
        """Compare all candidates, verified or not, with the tokens emitted after the root."""
        self._acceptance.record(*compiled.judged(self._nodes, self._count, np.array(emitted, np.int64)))


@dataclass(slots=True)
class DraftModelState:
    """The state of a draft model for one request: how the request samples, [1], and how often drafts were accepted."""

    request: EngineRequest
    acceptance: RequestAcceptance
    vocabulary: Vocabulary  # of the model
    processors: LogitsProcessors
    sampling: Samplings
    tree: DraftTree | None = None  # begun, and not verified yet
    length: int = 0  # of the sequence, when the tree was begun

    @classmethod
    def of(
        cls, request: EngineRequest, acceptance: RequestAcceptance, eos: Collection[int], vocabulary: Vocabulary,
        *, noise: float = 1.0,
    ) -> DraftModelState:  # fmt: skip
        """`noise`: how much of the sampler's own noise the model draws with."""
        ends = end_ids(request.sampling, eos)
        processors = LogitsProcessors(request.sampling, request.prompt, ends, vocabulary.draft_ids)
        return cls(request, acceptance, vocabulary, processors, sampling_of(request, noise=noise))

    def begin(self, tree: DraftTree, tokens: Sequence[int]) -> None:
        """Begin a draft after `tokens`, with `tree`, which a pass will verify."""
        self.tree, self.length = tree, len(tokens)
        self.processors.follow(tokens)

    def observe(self, root: int, emitted: Sequence[int]) -> None:
        """Judge the tree by the tokens that a pass emitted under `root`, and drop it."""
        tree, self.tree = self.tree, None
        if tree is not None and tree.root == root:
            tree.judge(emitted)

    def expand(self, logits: Float32, confidence: Float32 = NO_CONFIDENCE) -> None:
        """Add the model's tokens to the tree, see `DraftTree.expand`.

        Logits are processed as the target's are before sampling, but penalties count committed tokens only, no drafts.
        """
        assert self.tree is not None
        self.sampling["position"] = self.length + self.tree.steps
        processed = logits if self.processors.idle else self.processors.apply(logits)
        self.tree.expand(processed, self.vocabulary, self.sampling, confidence)


def expand(states: Sequence[DraftModelState], logits: Float32, confidence: Float32 | None = None) -> None:
    """Let the model expand all trees. logits [rows, draft vocabulary] and confidence [rows] in the order of the trees
    and, in each, of its frontier.
    """
    at = 0
    for each in states:
        assert each.tree is not None
        part = slice(at, at := at + len(each.tree.frontier))
        each.expand(logits[part], NO_CONFIDENCE if confidence is None else confidence[part])
