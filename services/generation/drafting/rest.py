"""REST: drafts are what followed the same words before, in a datastore, in the prompt or in the output.

After He et al., "REST: Retrieval-Based Speculative Decoding" (NAACL 2024). What is added: the request's own text and
the passages nearest to it come first, and a node is drafted only if its estimated acceptance pays for its row.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.acceptance import AcceptanceRates
from services.generation.drafting.history import History, Match, continuation
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.retrieval.trie import Trie, merge
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Budget
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree
from services.generation.target.errors import CacheFull

_DEPTH = 16  # tokens of a continuation
_NODES = 48  # of a trie
_OWN = 8  # earlier places of the request's own text that are looked at
_MARGIN = 0.1  # of probability, above breakeven: estimates err, and a draft costs the engine more than its rows
_LOOK = 4  # passes, of which one looks up where no draft would pay
_NEAREST = 16  # passages
_TOPIC = 256  # tokens at the end of a request that say what it is about, and after which it may be about something else
_SURE = 16  # tokens of own text that match: what a store could add then is not worth looking up
_LENGTHS = (1, 2, 3, 5, 8, 16)  # matches are told apart up to these lengths
_CLASSES = tuple(next(i for i, most in enumerate(_LENGTHS) if n <= most) for n in range(_LENGTHS[-1] + 1))
_PRIORS = (0.1, 0.25, 0.45, 0.6, 0.7, 0.8)  # acceptance expected after a match of each class

_NOWHERE = np.zeros(0, np.int64)

Kind = tuple[int, int, int]  # tier, class of match length, rank among the children of a node: what rates go by


class RestDrafter:
    """The method: sequences share acceptance rates and the stores of their tenant, never each other's text."""

    def __init__(self, cost: PassCost, stores: dict[str | None, list[Datastore]]) -> None:
        """`stores` by tenant; those under None are for everybody, by the operator's word."""
        self._cost = cost
        self._stores = stores
        self._rates = {
            sampled: AcceptanceRates(prior=_prior, weight=8.0, memory=0.998) for sampled in (False, True)
        }  # greedy text repeats itself more than sampled text: neither says much about the other

    def begin(self, request: EngineRequest) -> RestDraft:
        own = self._stores.get(request.tenant, []) if request.tenant is not None else []
        stores = [*own, *self._stores.get(None, [])]
        return RestDraft(stores, AcceptanceRates(self._rates[request.sampling.temperature > 0.0]))


@dataclass(slots=True)
class _Topic:
    """The passages nearest to a request, and at which length of it they were looked up."""

    near: list[NDArray[np.int64]]
    at: int


@dataclass(slots=True)
class RestDraft:
    """Retrieval for one sequence."""

    stores: list[Datastore]
    rates: AcceptanceRates
    _history: History = field(default_factory=History)
    _topic: _Topic | None = None
    _open: list[_Judged] = field(default_factory=list)
    _passes: int = 0

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        self._history.extend(tokens)
        least = min(1.0, budget.breakeven + _MARGIN)
        own = self._history.matches(_OWN)
        if not self._worth_a_look(own, least):
            return TokenTree.root(tokens[-1])
        trie = self._trie(tokens, own)
        judged = _Judged.of(trie, len(tokens))
        self._open.append(judged)
        return self._tree(tokens[-1], judged, budget, least)

    def _worth_a_look(self, own: list[Match], least: float) -> bool:
        """Where the own text or a store may hold what pays, and in every fourth pass to be judged."""
        self._passes += 1
        if self._passes % _LOOK == 0 or self.stores:
            return True
        return bool(own) and self.rates.rate((0, _class_of(own[0].length), 0), 1) >= least

    def _trie(self, tokens: list[int], own: list[Match]) -> Trie:
        """Tier 0 is the request's own text, 1 a passage near it, 2 anything else in its stores."""
        rows = [np.array([continuation(tokens, match.place, _DEPTH) for match in own], np.int64).reshape(-1, _DEPTH)]
        tiers = [np.zeros(len(own), np.int64)]
        lengths = [np.array([match.length for match in own], np.int64)]
        if not own or own[0].length < _SURE:
            context = self._history.end(_TOPIC)
            for store, near in zip(self.stores, self._near(context, len(tokens)), strict=True):
                hits = store.search(context, near, _DEPTH)
                rows.append(hits.continuations)
                tiers.append(np.where(hits.near, 1, 2))
                lengths.append(hits.lengths)
        return merge(np.concatenate(rows), np.concatenate(tiers), np.concatenate(lengths), _NODES)

    def _near(self, context: NDArray[np.int64], length: int) -> list[NDArray[np.int64]]:
        """The nearest passages of every store, looked up again once the request has grown by a topic's length."""
        if self._topic is None or length - self._topic.at >= _TOPIC:
            try:
                self._topic = _Topic([store.nearest_passages(context, _NEAREST) for store in self.stores], length)
            except CacheFull:  # the base that is to embed them has no room now: what was near still is
                return self._topic.near if self._topic else [_NOWHERE] * len(self.stores)
        return self._topic.near

    def _tree(self, root: int, judged: _Judged, budget: Budget, least: float) -> TokenTree:
        """The nodes that are accepted with a probability of `least`, as far as the budget goes."""
        nodes, parents, chances = [root], [-1], [1.0]
        place = {-1: 0}  # of a trie's node in the tree
        above = zip(judged.tokens, judged.parents, judged.depths, judged.kinds, strict=True)
        for node, (token, parent, depth, kind) in enumerate(above):
            if parent not in place or depth > budget.depth or len(nodes) > budget.nodes:
                continue
            chance = chances[place[parent]] * self.rates.rate(kind, depth)
            if chance >= least:
                place[node] = len(nodes)
                nodes.append(token)
                parents.append(place[parent])
                chances.append(chance)
        return TokenTree(tuple(nodes), tuple(parents))

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: NDArray[np.float32]) -> None:
        self._open = [judged for judged in self._open if judged.check(tokens, self.rates)]


@dataclass(slots=True)
class _Judged:
    """A trie that is compared with what was emitted, whether or not its nodes had been verified."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    kinds: list[Kind]
    children: dict[int, list[int]]
    place: int  # index in the sequence of its first tokens
    _node: int = -1  # the last one that held
    _depth: int = 1  # below it

    @classmethod
    def of(cls, trie: Trie, place: int) -> _Judged:
        parents = trie.parents.tolist()
        children: dict[int, list[int]] = {}
        kinds: list[Kind] = []
        for node, (parent, tier, length) in enumerate(
            zip(parents, trie.tiers.tolist(), trie.lengths.tolist(), strict=True)
        ):
            siblings = children.setdefault(parent, [])
            kinds.append((tier, _class_of(length), min(len(siblings), 2)))
            siblings.append(node)
        return cls(trie.tokens.tolist(), parents, trie.depths.tolist(), kinds, children, place)

    def check(self, tokens: list[int], rates: AcceptanceRates) -> bool:
        """Record what is known by now; False once a depth held nothing that was emitted."""
        while True:
            children = self.children.get(self._node, [])
            at = self.place + self._depth - 1
            if at >= len(tokens):
                return bool(children)
            held = [child for child in children if self.tokens[child] == tokens[at]]
            for child in children:
                rates.record(self.kinds[child], self._depth, child in held)
            if not held:
                return False
            self._node, self._depth = held[0], self._depth + 1


def _prior(kind: Hashable) -> float:
    tier, length_class, rank = cast(Kind, kind)
    first = _PRIORS[length_class] * (1.0 if tier < 2 else 0.7)
    return first if rank == 0 else 0.3 * first


def _class_of(length: int) -> int:
    return _CLASSES[min(length, _LENGTHS[-1])]
