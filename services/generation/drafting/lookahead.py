"""Lookahead decoding: no second model; guesses come from a Jacobi window, the prompt, the output and past outputs.

After Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (ICML 2024). Unlike there,
only guesses that pay for their rows are verified, and the window runs only if it pays for its rows too or a request
asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.drafting.acceptance import WINDOW
from services.generation.drafting.copies import Copies, OwnText
from services.generation.drafting.method_spec import MethodSpec, Parameter
from services.generation.drafting.past_outputs import Past, Pasts
from services.generation.drafting.text_draft import TextDraft
from services.generation.engine.drafter import Budget, Draft, Drafter, tried
from services.generation.engine.economics import seconds_saved
from services.generation.engine.request import EngineRequest, RequestKey, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.unread import LogitRows

CAPACITY = 64


class JacobiWindow:
    """W columns and up to N - 1 levels. Level 0 guesses the W tokens after the root. Level l of a column guesses the
    token after its level l - 1. Each pass adds a level to every column. N levels are an n-gram; level 0 then goes.
    """

    def __init__(self, columns: int, ngram: int, start: Sequence[int]) -> None:
        self._ngram = ngram
        self._levels = [[start[-1 - i % len(start)] for i in range(columns)]]

    @property
    def rows(self) -> int:
        return sum(len(level) for level in self._levels)

    def nodes(self, root: int, first: int) -> tuple[list[int], list[int]]:
        """Tokens and parents of the window as part of a tree whose next free node is `first`.

        Level 0 is a trunk below `root`; column c's deeper levels branch from its trunk node.
        """
        columns = len(self._levels[0])
        tokens = [token for level in self._levels for token in level]
        trunk = [root, *range(first, first + columns - 1)]
        return tokens, trunk + list(range(first, first + columns * (len(self._levels) - 1)))

    def advance(self, outputs: Sequence[int]) -> list[tuple[int, ...]]:
        """Take the tokens that the deepest level's rows predict, one a column; returns the n-grams completed."""
        self._levels.append(list(outputs))
        if len(self._levels) < self._ngram:
            return []
        ngrams = [tuple(level[column] for level in self._levels) for column in range(len(outputs))]
        del self._levels[0]
        return ngrams


class NgramPool:
    """At most 64 n-grams of one length, the least recently used out."""

    def __init__(self) -> None:
        self._used: dict[tuple[int, ...], None] = {}  # the most recently used last

    def __len__(self) -> int:
        return len(self._used)

    def add(self, ngram: tuple[int, ...]) -> None:
        """Take in an n-gram, or mark it as just used."""
        self._used.pop(ngram, None)
        self._used[ngram] = None
        if len(self._used) > CAPACITY:
            del self._used[next(iter(self._used))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """N-grams that begin with a token, without that token, the last one used first."""
        return [ngram[1:] for ngram in reversed(self._used) if ngram[0] == token]


WINDOW_BRINGS = 0.1
"""Tokens a pass that the window's n-grams bring beside the text's own, as measured on the demo's questions."""


@dataclass(frozen=True, slots=True)
class LookaheadShape:
    """W, N and G of the paper, with its defaults: window columns, n-gram order, guesses verified at most."""

    window: int = 15
    ngram: int = 5
    guesses: int = 15
    window_asked: bool = False  # the window runs whether or not it pays

    @classmethod
    def for_request(cls, request: EngineRequest) -> LookaheadShape:
        asked, paper = request.parameters, cls()
        return cls(
            asked.get("window", paper.window), asked.get("ngram", paper.ngram), asked.get("guesses", paper.guesses),
            "window" in asked,
        )  # fmt: skip

    @property
    def window_rows(self) -> int:
        return self.window * (self.ngram - 1)


class LookaheadDrafter(Drafter):
    """The method. Its sequences share past outputs and rates of acceptance with those of their tenant."""

    negligible_cost = True

    def __init__(self, pasts: Pasts | None = None, defer: Callable[[Callable[[], None]], None] | None = None) -> None:
        """`defer`: as in `DrafterInputs`."""
        self._pasts, self.ready = pasts or Pasts(), False
        self._try() if defer is None else defer(self._try)

    def _try(self) -> None:
        tried(self.begin(EngineRequest("", (0, 0), SamplingParams())))
        self.ready = True

    def begin(self, request: EngineRequest) -> LookaheadDraft:
        return LookaheadDraft(LookaheadShape.for_request(request), request, self._pasts.of(request))

    def forget(self, tenant: str, request: RequestKey | None = None) -> None:
        self._pasts.forget(tenant, request)


class LookaheadDraft(Draft):
    """Lookahead on one sequence."""

    def __init__(self, shape: LookaheadShape, request: EngineRequest, past: Past) -> None:
        self.shape, self.pool = shape, NgramPool()
        self._copying = TextDraft(request, past, self._look, shape.guesses)
        self._window: JacobiWindow | None = None
        self._window_nodes = 0  # of the tree in flight, its last ones
        self._proposed: TokenTree | None = None  # with these

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        return self._with_window(self._copying.propose(tokens, budget), tokens, budget)

    def _look(self, text: OwnText) -> list[Copies]:
        """Copies of the own text, then the window's n-grams, each as after a match of one token."""
        copies = [text.copies(2 * self.shape.guesses)]
        ngrams = self.pool.after(text.last)
        if ngrams:
            copies.append(Copies(WINDOW, np.array(ngrams, np.int64), np.ones(len(ngrams), np.int64)))
        return copies

    def _with_window(self, tree: TokenTree, tokens: list[int], budget: Budget) -> TokenTree:
        shape, rows = self.shape, self.shape.window_rows
        self._window_nodes = 0
        if shape.window < 1 or shape.ngram < 3 or budget.depth < shape.window + shape.ngram - 2:
            return tree
        if len(tree) + rows > budget.nodes or not (shape.window_asked or _window_pays(len(tree) - 1, rows, budget)):
            self._window = None
            return tree
        if self._window is None:
            self._window = JacobiWindow(shape.window, shape.ngram, tokens)
        self._window_nodes = self._window.rows
        added, below = self._window.nodes(0, len(tree))
        self._proposed = TokenTree((*tree.tokens, *added), (*tree.parents, *below), tree.predicted)
        return self._proposed

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        self._copying.observe(tokens, tree, path, logits)
        window_nodes, self._window_nodes = self._window_nodes, 0
        if self._window is not None and window_nodes and tree == self._proposed:  # else the pass ran without it
            deepest = logits[len(tree) - self.shape.window :]
            for ngram in self._window.advance([int(token) for token in deepest.argmax(axis=1)]):
                self.pool.add(ngram)

    def finish(self, tokens: list[int]) -> None:
        self._copying.finish(tokens)


def _window_pays(nodes: int, rows: int, budget: Budget) -> bool:
    """Whether a window of so many rows beside a tree is expected to save more than it costs."""
    more = float(budget.pass_cost[nodes + rows] - budget.pass_cost[nodes])
    return seconds_saved(WINDOW_BRINGS, more, float(budget.pass_cost[0])) > 0.0


METHOD = MethodSpec(
    name="lookahead",
    meaning="what followed the same words in the request or in past outputs, and n-grams of a Jacobi window",
    build=lambda parts: {"lookahead": LookaheadDrafter(parts.pasts, parts.defer)},
    workloads=("many_adapters", "code"),
    parameters=(
        Parameter("window", 0, 32, "W: columns of the Jacobi window"),
        Parameter("ngram", 2, 16, "N: tokens of an n-gram"),
        Parameter("guesses", 0, 32, "G: n-grams verified in a pass"),
    ),
)

SUFFIX = MethodSpec(
    name="suffix",
    meaning="what followed the same words in the tenant's own past outputs or in the request",
    by_name_only=True,  # `auto` has one drafter of copies
    build=lambda parts: {"suffix": LookaheadDrafter(parts.pasts, parts.defer)},
)
"""Suffix decoding by its name: the drafts of `lookahead`, which copy from the tenant's past outputs too."""
