"""Lookahead decoding: no second model; guesses come from a Jacobi window, the prompt and the output.

After Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (ICML 2024). What is added:
every guess carries an estimate of its acceptance, and only those that pay for their row are verified; the window, too,
runs only while it pays.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.acceptance import AcceptanceRates
from services.generation.drafting.history import LONG_MATCH, LONG_REACH, REACH, History, Match, continuation
from services.generation.drafting.jacobi import JacobiWindow
from services.generation.drafting.method_spec import MethodSpec, Parameter
from services.generation.drafting.ngram_pool import NgramPool
from services.generation.drafting.trial import Trial
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Budget, Draft, Drafter
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree

_LOOK = 4  # passes, of which one is looked at closely where no draft would pay
_LENGTHS = (1, 2, 3, 5, 8, 16)  # suffix matches are told apart up to these lengths
_PRIORS = (0.15, 0.3, 0.5, 0.6, 0.7, 0.8)  # acceptance expected after a match of each class

Kind = tuple[str, int, int]  # source, class of match length, rank among the guesses of a step


@dataclass(frozen=True, slots=True)
class LookaheadShape:
    """W, N and G of the paper: window columns, n-gram order, guesses verified at most."""

    window: int
    ngram: int
    guesses: int

    @classmethod
    def for_device(cls, cost: PassCost) -> LookaheadShape:
        """The cheaper a row is beside a whole pass, the wider.

        One more row pays from an acceptance of `breakeven` on: a guess in two, three or more that is right that often
        is worth verifying, and a window of W (N - 1) rows must not cost more than one pass.
        """
        breakeven = cost.breakeven(1, 1)
        ngram = 5 if breakeven < 0.05 else 4
        window = min(15, int(0.7 / breakeven / (ngram - 1)))
        return cls(window=window, ngram=ngram, guesses=max(1, min(15, int(0.4 / breakeven))))


@dataclass(slots=True)
class _Guess:
    kind: Kind
    tokens: list[int]
    place: int  # index in the sequence of its first token
    checked: int = 0  # tokens already compared with what was emitted


class LookaheadDrafter(Drafter):
    """The method: what its sequences share are acceptance rates, never tokens, so no text crosses from one to
    another.
    """

    def __init__(self, cost: PassCost) -> None:
        self.shape = LookaheadShape.for_device(cost)
        self._rates = {
            sampled: AcceptanceRates(prior=_prior, weight=8.0, memory=0.998) for sampled in (False, True)
        }  # greedy text repeats itself more than sampled text: neither says much about the other
        self._trial = Trial()

    def begin(self, request: EngineRequest) -> LookaheadDraft:
        asked = request.parameters
        shape = LookaheadShape(
            asked.get("window", self.shape.window),
            asked.get("ngram", self.shape.ngram),
            asked.get("guesses", self.shape.guesses),
        )
        trial = Trial(always=True) if asked.get("window") else self._trial
        return LookaheadDraft(shape, AcceptanceRates(self._rates[request.sampling.temperature > 0.0]), trial)


@dataclass(slots=True)
class LookaheadDraft(Draft):
    """Lookahead on one sequence."""

    shape: LookaheadShape
    rates: AcceptanceRates
    trial: Trial  # whether the window runs
    _history: History = field(default_factory=History)
    _pool: NgramPool = field(default_factory=NgramPool)
    expected: float = 0.0  # draft tokens of the last tree's best guess that are expected to hold
    chances: list[float] = field(default_factory=list)  # of the last tree's nodes, the window's not counted
    _window: JacobiWindow | None = None
    _window_nodes: int = 0  # of the tree in flight, its last ones
    _open: list[_Guess] = field(default_factory=list)
    _passes: int = 0

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        self._history.extend(tokens)
        matches = self._history.matches(2 * self.shape.guesses)
        nodes, parents = [tokens[-1]], [-1]
        least = budget.breakeven
        self.expected, self.chances = 0.0, [1.0]
        if self._worth_a_look(matches, least):
            guesses = self._guesses(tokens, matches)
            self._open += guesses
            for guess in guesses:
                self._graft(guess, nodes, parents, budget, least)
        self._add_window(tokens, nodes, parents, budget)
        return TokenTree(tuple(nodes), tuple(parents))

    def _worth_a_look(self, matches: list[Match], least: float) -> bool:
        """Guesses are made where the best copy would pay, while the window runs, and in every fourth pass to be
        judged.
        """
        self._passes += 1
        if self._passes % _LOOK == 0 or self._window is not None:
            return True
        return bool(matches) and self.rates.rate(("copy", _class_of(matches[0].length), 0), 1) >= least

    def _guesses(self, tokens: list[int], matches: list[Match]) -> list[_Guess]:
        """Up to G continuations with different beginnings: copies of earlier text, longest match first, then the
        pool.
        """
        guesses: list[_Guess] = []
        begun: set[int] = set()
        for match in matches:
            if len(guesses) < self.shape.guesses and tokens[match.place] not in begun:
                begun.add(tokens[match.place])
                kind = "copy", _class_of(match.length), min(len(guesses), 2)
                copied = continuation(tokens, match.place, self._reach(match))
                guesses.append(_Guess(kind, copied, len(tokens)))
                self._pool.add((tokens[-1], *copied[: self.shape.ngram - 1]), "copy")
        for ngram, source in self._pool.guesses(tokens[-1]):
            if len(guesses) < self.shape.guesses and ngram[0] not in begun:
                begun.add(ngram[0])
                guesses.append(_Guess((source, 0, min(len(guesses), 2)), list(ngram), len(tokens)))
        return guesses

    def _reach(self, match: Match) -> int:
        """Tokens that a copy may run."""
        if match.length == 1:
            return self.shape.ngram - 1
        return REACH if match.length <= LONG_MATCH else LONG_REACH

    def _graft(self, guess: _Guess, nodes: list[int], parents: list[int], budget: Budget, least: float) -> None:
        """Add a guess to the tree as deep as its tokens are accepted with a probability of `least`."""
        node, probability, expected = 0, 1.0, 0.0
        for depth, token in enumerate(guess.tokens[: budget.depth], 1):
            probability *= self.rates.rate(guess.kind, depth)
            if probability < least or len(nodes) > budget.nodes:
                return
            expected += probability
            self.expected = max(self.expected, expected)
            nodes.append(token)
            parents.append(node)
            self.chances.append(probability)
            node = len(nodes) - 1

    def _add_window(self, tokens: list[int], nodes: list[int], parents: list[int], budget: Budget) -> None:
        shape = self.shape
        self._window_nodes = 0
        if shape.window < 1 or shape.ngram < 3 or budget.depth < shape.window + shape.ngram - 2:
            return
        rows = shape.window * (shape.ngram - 1)
        if len(nodes) + rows > budget.nodes or not self.trial.wanted(rows * budget.breakeven):
            self._window = None
            return
        if self._window is None:
            self._window = JacobiWindow(shape.window, shape.ngram, tokens)
        self._window_nodes = self._window.rows
        added, below = self._window.nodes(0, len(nodes))
        nodes += added
        parents += below

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: NDArray[np.float32]) -> None:
        still_open = []
        for guess in self._open:
            if self._check(guess, tokens):
                still_open.append(guess)
        self._open = still_open
        window_nodes, self._window_nodes = self._window_nodes, 0
        if self._window is not None and 0 < window_nodes < len(tree):  # else the pass ran without it
            deepest = logits[len(tree) - self.shape.window :]
            for ngram in self._window.advance([int(token) for token in deepest.argmax(axis=1)]):
                self._pool.add(ngram, "window")

    def _check(self, guess: _Guess, tokens: list[int]) -> bool:
        """Compare a guess with what has been emitted since; False once its end, or its first error, is known.

        Guesses are judged whether or not they were verified, so a kind that stopped paying is noticed when it is right
        again, at no cost.
        """
        while guess.checked < len(guess.tokens):
            place = guess.place + guess.checked
            if place >= len(tokens):
                return True
            held = guess.tokens[guess.checked] == tokens[place]
            guess.checked += 1
            self.rates.record(guess.kind, guess.checked, held)
            if guess.kind[0] == "window" and held:
                self.trial.gained()
            if not held:
                return False
        return False


def _prior(kind: Hashable) -> float:
    """What is expected of a kind of guess before any was judged: more, the longer the match that it follows."""
    source, length_class, rank = cast(Kind, kind)
    first = _PRIORS[length_class] if source == "copy" else _PRIORS[0]
    return first if rank == 0 else 0.3 * first


def _class_of(length: int) -> int:
    return next((i for i, longest in enumerate(_LENGTHS) if length <= longest), len(_LENGTHS) - 1)


METHOD = MethodSpec(
    name="lookahead",
    meaning="n-grams of the request's own text and of a Jacobi window",
    build=lambda parts: {"lookahead": LookaheadDrafter(parts.cost)},
    workloads=("many_adapters", "code"),
    parameters=(
        Parameter("window", 0, 32, "W: columns of the Jacobi window"),
        Parameter("ngram", 2, 16, "N: tokens of an n-gram"),
        Parameter("guesses", 0, 32, "G: n-grams verified in a pass"),
    ),
)
