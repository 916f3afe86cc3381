"""REST: drafts are text that followed the same words before, in a datastore, prompt, output or past outputs.

After He et al., "REST: Retrieval-Based Speculative Decoding" (NAACL 2024). Beyond the paper, the request's own text and
the passages nearest to it come first, and a node is drafted only if its estimated acceptance pays for its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.drafting.acceptance import NEAR
from services.generation.drafting.copies import END, Copies, OwnText, copies_from
from services.generation.drafting.draft_tree.candidates import Samplings, sampling_of
from services.generation.drafting.draft_tree.nodes import Bounds, Nodes
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec
from services.generation.drafting.past_outputs import Pasts
from services.generation.drafting.retrieval.backoff import LONGEST, expand
from services.generation.drafting.retrieval.datastore import Datastore
from services.generation.drafting.text_draft import TextDraft
from services.generation.engine.drafter import Drafter, tried
from services.generation.engine.request import EngineRequest, RequestKey, SamplingParams
from services.generation.target.arrays import Float64, Int64

_OWN = 8  # earlier places of the request's own text that are looked at
_NEAR = 8  # places in the passages near it
_SHORTEST = 2  # tokens of a match there
_NEAREST = 16  # passages
_NEAR_TOKENS = 16_384  # of them at most
_TOPIC = 256  # tokens at the end of a request that are its topic; after as many new ones it is looked up again
_REACH = 16  # tokens of a retrieved text
_SURE = 16  # tokens of own text that match: a store or shorter matches add little then


class RestDrafter(Drafter):
    """The method. Its sequences share stores, past outputs and rates of acceptance with those of their tenant."""

    negligible_cost = True

    def __init__(self, stores: dict[str | None, list[Datastore]], pasts: Pasts | None = None) -> None:
        """`stores` by tenant; a store under None serves all tenants, as the operator has configured."""
        self._stores, self._pasts = stores, pasts or Pasts()

    def begin(self, request: EngineRequest) -> TextDraft:
        own = self._stores.get(request.tenant, []) if request.tenant is not None else []
        stores = [*own, *self._stores.get(None, [])]
        retrieval = Retrieval(stores, sampling_of(request))
        expand = retrieval.expand if stores else None
        return TextDraft(request, self._pasts.of(request), retrieval.look, expand=expand)

    def forget(self, tenant: str, request: RequestKey | None = None) -> None:
        self._pasts.forget(tenant, request)


@dataclass(frozen=True, slots=True)
class _Topic:
    """The passages nearest to a request, and at which length of it they were looked up."""

    near: Int64  # one passage behind the other, the nearest one last, END behind each
    at: int


class Retrieval:
    """REST on one sequence."""

    def __init__(self, stores: list[Datastore], sampling: Samplings) -> None:
        self._stores, self._sampling = stores, sampling
        self._topic: _Topic | None = None
        self._sure = False  # that the own text goes on as before

    def look(self, text: OwnText) -> list[Copies]:
        """Copies from the own text and from the passages near the request."""
        own = text.copies(_OWN)
        self._sure = bool(len(own.lengths)) and int(own.lengths[0]) >= _SURE
        if not self._stores or self._sure:
            return [own]
        context = text.end(_TOPIC)
        near = copies_from(self._near(context, len(text)), NEAR, context, _SHORTEST, _NEAR, _REACH)
        return [own, near]

    def expand(self, text: OwnText, nodes: Nodes, count: int, bounds: Bounds, rates: Float64) -> int:
        """Add continuations from all of its stores: see `backoff.expand`."""
        if self._sure:
            return count
        end = text.end(LONGEST)
        self._sampling["position"] = len(text)
        for store in self._stores:
            for shard in store.shards:
                count = expand(nodes, count, shard.arrays, end, self._sampling, bounds, rates)
        return count

    def _near(self, context: Int64, length: int) -> Int64:
        """The nearest passages of every store, looked up again once the request has grown by a topic's length."""
        if self._topic is None or length - self._topic.at >= _TOPIC:
            self._topic = _Topic(joined(list(self._nearest(context))), length)
        return self._topic.near

    def _nearest(self, context: Int64) -> Iterator[Int64]:
        for store in self._stores:
            yield from map(store.passage, store.nearest_passages(context, _NEAREST).tolist())


def joined(passages: Sequence[Int64]) -> Int64:
    """Passages, the nearest ones first, as a text to copy from, cut to its bound."""
    kept, room = [np.full(1, END, np.int64)], _NEAR_TOKENS
    for passage in passages:
        kept.append(np.append(passage[:room], END))
        room -= len(kept[-1]) - 1
    return np.concatenate(kept[::-1])


def _build(parts: DrafterInputs) -> dict[str, RestDrafter]:
    """A drafter over datastores in the base's tokens. Every file is hashed: the search trusts its bytes."""
    if not parts.datastores:
        return {}
    stores: dict[str | None, list[Datastore]] = {}
    for tenant, folder in parts.datastores:
        store = Datastore.open(folder, parts.base, parts.target.tokenizer_cid, embedded_by=parts.target.base_cid)
        store.verify()
        stores.setdefault(tenant, []).append(store)
    for tenant in stores:
        ahead = RestDrafter(stores)  # not the drafter that serves: it would learn from this
        tried(ahead.begin(EngineRequest("", (0, 0), SamplingParams(), method="rest", tenant=tenant)))
    return {"rest": RestDrafter(stores, parts.pasts)}


METHOD = MethodSpec(
    name="rest",
    meaning="what followed the same words in a datastore or in the request",
    build=_build,
    missing="no_datastore",
    flag="--datastore or --shared-datastore",
    workloads=("rag",),
)
