"""Copies: what followed the same words before in a sequence's own text, as candidates for what comes next.

As lookahead makes them, with its acceptance counted in arrays and nothing done in Python: beside a small head even a
few calls are time. A copy is told apart by how many tokens it has in common with the end of the text, by its rank among
the copies of a pass, and by depth.
"""

from __future__ import annotations

import numpy as np

from services.generation.drafting.eagle3.confidence import Float64
from services.generation.drafting.eagle3.growing import Int64
from services.generation.drafting.history import LONG_MATCH, LONG_REACH, REACH, search
from services.generation.drafting.relaxed import relaxed
from services.generation.engine.tree import TokenTree

_LENGTHS = np.array((1, 2, 3, 5, LONG_MATCH))  # of the common end, that tell copies apart; beyond, the last class
_PRIORS = np.array((0.15, 0.3, 0.5, 0.6, 0.7, 0.8))  # acceptance expected of each class before any was judged
_RANKS = 3
_AFTER_FIRST = 0.3  # times as much is expected of copies that are not the first
_DEEPEST = 8  # depths from here on share one rate
_NEAR = 3  # tokens of a copy that has a single token in common with the end
_OPEN = 64  # copies that wait to be judged
MOST = 64  # nodes of a tree
_SHARED_WEIGHT, _OWN_WEIGHT = 8.0, 4.0  # observations that the prior and the shared rate count for
_SHARED_MEMORY, _OWN_MEMORY = 0.998, 0.99  # of the counts, per observation
_FIRST_SIZE = 1024

COUNTS = (len(_PRIORS), _RANKS, _DEEPEST + 1, 2)  # classes, ranks, depths, (accepted, tried)
START, PLACE, CLASS, RANK, CHECKED = range(5)  # columns of open copies: index in the text of the first token, and
# of the token that it copies; tokens already compared


class Copies:
    """Of one sequence. What sequences share are `shared` counts, of shape COUNTS, never text."""

    def __init__(self, shared: Float64, guesses: int) -> None:
        """`guesses` copies with different beginnings are made at most."""
        self.expected = 0.0  # tokens of the best copy of the last pass that are likely to hold and pay
        self._shared, self._guesses = shared, guesses
        self._own = np.zeros(COUNTS)
        self._text, self._length = np.empty(_FIRST_SIZE, np.int64), 0
        self._open, self._opened = np.empty((_OPEN, 5), np.int64), 0
        self._tokens, self._parents = np.empty(MOST, np.int64), np.full(MOST, -1, np.int64)
        self._chances, self._count = np.ones(MOST), 1

    def __len__(self) -> int:
        """Nodes of the last tree, its root included."""
        return self._count

    @property
    def candidates(self) -> tuple[Int64, Int64, Float64]:
        """Tokens, parents and chances of the last tree's nodes, the root first; a chance is that of the whole path."""
        return self._tokens[: self._count], self._parents[: self._count], self._chances[: self._count]

    def find(self, tokens: list[int], depth: int, least: float, pays: float) -> None:
        """The tree under tokens[-1], with all nodes whose chance is `least`; `expected` counts those from `pays` on."""
        self._extend(tokens)
        self._count, self._opened, self.expected = _copy(
            self._text[: self._length], self._own, self._shared, self._open, self._opened, self._guesses, depth, least,
            pays, self._tokens, self._parents, self._chances,
        )  # fmt: skip

    def tree(self, least: float, most: int = MOST) -> TokenTree:
        """Those of its nodes whose chance is `least`, the first `most` of them, without the head's word on them."""
        tokens, parents, chances = self.candidates
        places = np.cumsum(chances >= least) - 1
        kept = np.flatnonzero(chances >= least)[: most + 1]
        below = places[parents[kept]]
        below[0] = -1
        return TokenTree(tuple(tokens[kept].tolist()), tuple(below.tolist()))

    def judge(self, tokens: list[int]) -> None:
        """Compare what was copied, verified or not, with what was emitted since."""
        self._extend(tokens)
        self._opened = _judge(self._text[: self._length], self._own, self._shared, self._open, self._opened)

    def _extend(self, tokens: list[int]) -> None:
        while len(tokens) > len(self._text):
            self._text = np.concatenate([self._text, np.empty_like(self._text)])
        self._text[self._length : len(tokens)] = tokens[self._length :]
        self._length = len(tokens)


@relaxed
def _copy(
    text: Int64, own: Float64, shared: Float64, waiting: Int64, waiting_count: int, guesses: int, depth: int,
    least: float, pays: float, tokens: Int64, parents: Int64, chances: Float64,
) -> tuple[int, int, float]:  # fmt: skip
    """Copies, longest match first, into tokens, parents and chances; how many nodes, how many copies wait, and what is
    expected.
    """
    tokens[0], nodes, made, expected = text[-1], 1, 0, 0.0
    places, lengths, found = search(text, 2 * guesses)
    for match in range(found):
        place, begun = places[match], False
        for earlier in range(match):
            begun = begun or text[places[earlier]] == text[place]
        if begun or made == guesses:
            continue
        kind, rank = _class_of(lengths[match]), min(made, _RANKS - 1)
        made += 1
        if waiting_count < waiting.shape[0]:
            waiting[waiting_count] = len(text), place, kind, rank, 0
            waiting_count += 1
        node, chance, sure = 0, 1.0, 0.0
        for step in range(min(depth, _length(kind))):
            chance *= _rate(own, shared, kind, rank, step + 1)
            if chance < least or nodes == tokens.shape[0]:
                break
            sure += chance if chance >= pays else 0.0
            tokens[nodes], parents[nodes], chances[nodes] = text[place + step % (len(text) - place)], node, chance
            node, nodes = nodes, nodes + 1
        expected = max(expected, sure)
    return nodes, waiting_count, expected


@relaxed
def _judge(text: Int64, own: Float64, shared: Float64, waiting: Int64, count: int) -> int:
    """Judge as far as `text` tells; how many copies still wait."""
    left = 0
    for i in range(count):
        start, place, kind, rank, checked = waiting[i]
        held = True
        while held and checked < _length(kind) and start + checked < len(text):
            held = text[place + checked % (start - place)] == text[start + checked]
            checked += 1
            _record(own, kind, rank, checked, held, _OWN_MEMORY)
            _record(shared, kind, rank, checked, held, _SHARED_MEMORY)
        if held and checked < _length(kind):
            waiting[left] = start, place, kind, rank, checked
            left += 1
    return left


@relaxed
def _class_of(length: int) -> int:
    kind = 0
    while kind < len(_LENGTHS) and length > _LENGTHS[kind]:
        kind += 1
    return kind


@relaxed
def _length(kind: int) -> int:
    if kind == len(_LENGTHS):
        return LONG_REACH
    return _NEAR if kind == 0 else REACH


@relaxed
def _rate(own: Float64, shared: Float64, kind: int, rank: int, depth: int) -> float:
    at = min(depth, _DEEPEST)
    prior = _PRIORS[kind] * (1.0 if rank == 0 else _AFTER_FIRST)
    accepted, tried = shared[kind, rank, at]
    prior = (accepted + _SHARED_WEIGHT * prior) / (tried + _SHARED_WEIGHT)
    accepted, tried = own[kind, rank, at]
    return float((accepted + _OWN_WEIGHT * prior) / (tried + _OWN_WEIGHT))


@relaxed
def _record(counts: Float64, kind: int, rank: int, depth: int, held: bool, memory: float) -> None:
    seen = counts[kind, rank, min(depth, _DEEPEST)]
    seen[0] = seen[0] * memory + (1.0 if held else 0.0)
    seen[1] = seen[1] * memory + 1.0
