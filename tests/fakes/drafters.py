"""Drafters for tests: one drafts wrong tokens, one the answer, one breaks. All implement the production Protocol."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from services.generation.engine.cost import MARGIN
from services.generation.engine.drafter import Budget, Draft, Drafter, DraftRequest
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32
from services.generation.target.unread import LogitRows
from tests.fakes.table_target import ContextTarget


class Panic(BaseException):
    """A panic of Rust as pyo3 raises it: not an Exception."""


class LyingDrafter(Drafter):
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


class LyingDraft(Draft):
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

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        assert len(logits) == len(tree)
        assert tokens[-1 - len(path) : -1] == [tree.tokens[node] for node in path]
        if self._rng.random() < self._bugs:
            raise RuntimeError("a drafter's bug")


class ReadingDrafter(Drafter):
    """Compares the features that it reads with the target's own; `faults` has the differences.

    Its trees are noise of a few nodes.
    """

    def __init__(self, target: ContextTarget, seed: int, feature_layers: tuple[int, ...]) -> None:
        self.feature_layers = feature_layers
        self.faults: list[str] = []
        self.read = 0  # features, by all
        self._target, self._rng = target, random.Random(seed)

    def begin(self, request: EngineRequest) -> ReadingDraft:
        return ReadingDraft(self)

    def propose(self, asks: Sequence[DraftRequest]) -> list[TokenTree]:
        return [self._tree(ask) for ask in asks]

    def _tree(self, ask: DraftRequest) -> TokenTree:
        draft = ask.draft
        assert isinstance(draft, ReadingDraft)
        if draft.length != len(ask.tokens) - 1:
            self.faults.append(f"{draft.length} features read of {len(ask.tokens)} tokens")
        count = self._rng.randrange(min(4, ask.budget.nodes + 1))
        parents = [-1, *(self._rng.randrange(node + 1) for node in range(count))]
        vocab = self._target.config.vocab_size
        return TokenTree((ask.tokens[-1], *(self._rng.randrange(vocab) for _ in range(count))), tuple(parents))

    def check(self, tokens: list[int], start: int, features: Float32) -> None:
        self.read += len(features)
        right = self._target.features_of(tokens[: start + len(features)], self.feature_layers)[start:]
        if not np.array_equal(right, features):
            self.faults.append(f"wrong features from position {start} on")


class ReadingDraft(Draft):
    def __init__(self, drafter: ReadingDrafter) -> None:
        self._drafter = drafter
        self.length = 0

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        if start != self.length:
            self._drafter.faults.append(f"features from position {start} on after {self.length}")
        self._drafter.check(tokens, start, features)
        self.length = start + len(features)

    def release(self) -> None:
        self.length = 0


_ROW = 1e-3  # seconds


def budget(nodes: int, depth: int, breakeven: float) -> Budget:
    """`breakeven` is the chance of acceptance from which a node is worth its row."""
    return Budget.of(depth, MARGIN * _ROW * (1 / breakeven + np.arange(nodes + 1, dtype=np.float64)))


class LetterDecoder:
    """Ids 0 to 25 are a to z, and so on. With `split`, an odd id opens a character that the next id closes."""

    def __init__(self, prompt: tuple[int, ...] = (), *, split: bool = False) -> None:
        self._split = split
        self._open = ""

    def feed(self, token: int) -> str:
        letter = chr(ord("a") + token % 26)
        if self._split and token % 2:
            self._open += letter
            return ""
        text, self._open = self._open + letter, ""
        return text

    def flush(self) -> str:
        text, self._open = "\N{REPLACEMENT CHARACTER}" * bool(self._open), ""
        return text
