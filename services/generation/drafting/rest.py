"""REST: drafts are what followed the same words before, in a datastore, in the prompt or in the output.

After He et al., "REST: Retrieval-Based Speculative Decoding" (NAACL 2024). What is added: the request's own text and
the passages nearest to it come first, and a node is drafted only if its estimated acceptance pays for its row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.history import LONG_MATCH, LONG_REACH, REACH, History
from services.generation.drafting.method_spec import MethodSpec, Parts
from services.generation.drafting.retrieval.datastore import SHORTEST, Datastore
from services.generation.drafting.retrieval.embedders.models import Models
from services.generation.drafting.retrieval.embedders.sentence_model import SentenceModel
from services.generation.drafting.retrieval.judging import COUNTS, FAR, NEAR, OWN, Rates, Waiting
from services.generation.drafting.retrieval.nearby import Nearby
from services.generation.drafting.retrieval.trie import Trie, merge
from services.generation.engine.drafter import Budget, Draft, Drafter
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.errors import CacheFull

_NODES = 48  # of a trie
_SURE_NODES = 64  # of one of own text alone
_OWN = 8  # earlier places of the request's own text that are looked at
_NEAR = 8  # places in the passages near it
_WEAK, _SHALLOW = 2, 4  # tokens of a match after which little holds, and how many tokens are looked at after such
_LOOK = 4  # passes, of which one looks up where no draft would pay
_NEAREST = 16  # passages
_TOPIC = 256  # tokens at the end of a request that say what it is about, and after which it may be about something else
_SURE = 16  # tokens of own text that match: what a store or shorter matches could add is little then

Int64 = NDArray[np.int64]
Source = tuple[int, Int64, Int64]  # tier, continuations [found, depth], lengths of the matches before them [found]


class RestDrafter(Drafter):
    """The method: sequences share acceptance rates and the stores of their tenant, never each other's text."""

    def __init__(self, stores: dict[str | None, list[Datastore]]) -> None:
        """`stores` by tenant; those under None are for everybody, by the operator's word."""
        self._stores = stores
        self._counts = np.zeros((2, *COUNTS))  # greedy text repeats itself more than sampled text

    def begin(self, request: EngineRequest) -> RestDraft:
        own = self._stores.get(request.tenant, []) if request.tenant is not None else []
        stores = [*own, *self._stores.get(None, [])]
        return RestDraft(stores, Rates(self._counts[int(request.sampling.temperature > 0.0)]))


@dataclass(frozen=True, slots=True)
class _Topic:
    """The passages nearest to a request, and at which length of it they were looked up."""

    near: Nearby
    at: int


@dataclass(slots=True)
class RestDraft(Draft):
    """Retrieval for one sequence."""

    stores: list[Datastore]
    rates: Rates
    _history: History = field(default_factory=History)
    _topic: _Topic | None = None
    _waiting: list[Waiting] = field(default_factory=list)
    _passes: int = 0

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        self._history.extend(tokens)
        least = budget.breakeven
        own, lengths = self._history.continuations(_OWN, LONG_REACH)
        longest = int(lengths[0]) if len(lengths) else 0
        if not self._worth_a_look(longest, least):
            return TokenTree.root(tokens[-1])
        if longest < _SURE:
            trie = _merged([(OWN, own[:, :REACH], lengths), *self._retrieved(len(tokens))], _NODES)
        else:
            own[lengths <= LONG_MATCH, _SHALLOW:] = -1
            trie = _merged([(OWN, own, lengths)], _SURE_NODES)
        self._waiting.append(Waiting(trie, len(tokens)))
        return self.rates.tree(tokens[-1], trie, budget.nodes, budget.depth, least)

    def _worth_a_look(self, longest: int, least: float) -> bool:
        """Where the own text or a store may hold what pays, and in every fourth pass to be judged."""
        self._passes += 1
        if self._passes % _LOOK == 0 or self.stores:
            return True
        return longest > 0 and self.rates.first(longest) >= least

    def _retrieved(self, length: int) -> list[Source]:
        """From the passages near the request, and from all of its stores."""
        context = self._history.end(_TOPIC)
        near = self._near(context, length).continuations(context, SHORTEST, _NEAR, REACH)
        found = [store.search(context, REACH) for store in self.stores]
        return [(NEAR, *near), *((FAR, hits.continuations, hits.lengths) for hits in found)]

    def _near(self, context: Int64, length: int) -> Nearby:
        """The nearest passages of every store, looked up again once the request has grown by a topic's length."""
        if self._topic is None or length - self._topic.at >= _TOPIC:
            try:
                passages = [
                    store.passage(index)
                    for store in self.stores
                    for index in store.nearest_passages(context, _NEAREST).tolist()
                ]
            except CacheFull:  # the base that is to embed them has no room now: what was near still is
                return self._topic.near if self._topic else Nearby([])
            self._topic = _Topic(Nearby(passages), length)
        return self._topic.near

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: NDArray[np.float32]) -> None:
        self._history.extend(tokens)
        self._waiting = [waiting for waiting in self._waiting if self.rates.judge(waiting, self._history.tokens)]


def _merged(sources: list[Source], most: int) -> Trie:
    tiers = np.repeat([tier for tier, _, _ in sources], [len(lengths) for _, _, lengths in sources])
    rows, lengths = (np.concatenate([source[part] for source in sources]) for part in (1, 2))
    rows[lengths <= _WEAK, _SHALLOW:] = -1  # or three near matches of two tokens would fill the trie
    return merge(rows, tiers, lengths, most)


def _build(parts: Parts) -> dict[str, RestDrafter]:
    """Over datastores that speak the base's tokenizer. Every file is hashed: the search trusts what it maps."""
    if not parts.corpora:
        return {}
    sentences = None if parts.embedder is None else SentenceModel.load(parts.embedder)
    models = Models(parts.base, parts.target, sentences, parts.tokenizer.fast)
    stores: dict[str | None, list[Datastore]] = {}
    for tenant, folder in parts.corpora:
        store = Datastore.open(folder, parts.base, parts.target.tokenizer_cid, models)
        store.verify()
        stores.setdefault(tenant, []).append(store)
    for tenant in stores:
        _look_up_ahead(RestDrafter(stores), tenant)  # not by the one that serves: it learns from what it sees
    return {"rest": RestDrafter(stores)}


def _look_up_ahead(rest: RestDrafter, tenant: str | None) -> None:
    """What a tenant's first request would wait for otherwise: what is compiled, and an index read from disk."""
    draft = rest.begin(EngineRequest("", (0, 0), SamplingParams(), method="rest", tenant=tenant))
    tree = draft.propose([0, 0], Budget(nodes=1, depth=1, breakeven=0.0))
    draft.observe([0, 0, 0], tree, [0], np.zeros((len(tree), 1), np.float32))


METHOD = MethodSpec(
    name="rest",
    meaning="what followed the same words in a corpus or in the request",
    build=_build,
    missing="no_corpus",
    flag="--corpus",
    workloads=("rag",),
)
