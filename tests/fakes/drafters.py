"""Drafters for tests: one that lies, one that knows the answer, one that breaks. All implement the production
Protocol.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.drafter import Budget
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree


class LyingDrafter:
    """Random trees, wider and deeper than asked for, with tokens outside of the vocabulary and wrong roots; and
    exceptions,
    in a share of its calls given by `bugs`.

    With `truth` (the tokens that each request really emits) some paths of its trees are right, so that the walk goes
    down branches and the accepted path has to be moved.
    """

    def __init__(
        self,
        seed: int,
        vocab_size: int,
        truth: dict[tuple[str, int], Sequence[int]] | None = None,
        *,
        bugs: float = 0.01,
    ) -> None:
        self._rng = random.Random(seed)
        self._vocab_size = vocab_size
        self._truth = truth or {}
        self._bugs = bugs

    def begin(self, request: EngineRequest) -> LyingDraft:
        truth = self._truth.get(request.key, ())
        return LyingDraft(self._rng, self._vocab_size, len(request.prompt), truth, self._bugs)


class LyingDraft:
    def __init__(
        self, rng: random.Random, vocab_size: int, prompt_length: int, truth: Sequence[int], bugs: float
    ) -> None:
        self._rng, self._vocab_size, self._bugs = rng, vocab_size, bugs
        self._prompt_length, self._truth = prompt_length, truth

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        rng = self._rng
        if rng.random() < self._bugs:
            raise RuntimeError("a drafter's bug")
        if rng.random() < 0.03:
            return TokenTree.root(tokens[-1] + 1)
        nodes, parents, depths = [tokens[-1]], [-1], [0]
        for _ in range(rng.randrange(0, budget.nodes + 4)):
            parent = rng.randrange(len(nodes)) if rng.random() < 0.6 else len(nodes) - 1
            nodes.append(self._token(len(tokens) - self._prompt_length + depths[parent]))
            parents.append(parent)
            depths.append(depths[parent] + 1)
        return TokenTree(tuple(nodes), tuple(parents))

    def _token(self, output_index: int) -> int:
        if output_index < len(self._truth) and self._rng.random() < 0.7:
            return self._truth[output_index]
        return self._rng.randrange(-2, self._vocab_size + 2)

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: NDArray[np.float32]) -> None:
        assert len(logits) == len(tree)
        assert tokens[-1 - len(path) : -1] == [tree.tokens[node] for node in path]
        if self._rng.random() < self._bugs:
            raise RuntimeError("a drafter's bug")
