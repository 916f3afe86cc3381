"""Several methods as one: for each pass of a sequence one drafts, and all that have drafted see what came of it.

Identity makes a change of method inside a request safe: what drafts can never change a token.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from services.generation.drafting.auto.arm import OFF, arms_of
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.draft import AutoDraft
from services.generation.drafting.auto.kept import Tallies
from services.generation.drafting.auto.reader import Reader
from services.generation.drafting.auto.resemblance import OTHER
from services.generation.drafting.auto.tally import Kind, Record
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Ask, FeatureDrafter
from services.generation.engine.request import EngineRequest
from services.generation.engine.speculation import AnyDrafter
from services.generation.engine.tree import TokenTree

log = logging.getLogger(__name__)

_MEMORY = 0.9995  # of the shared records, a pass


class AutoDrafter:
    """`FeatureDrafter` over the drafters that are loaded. Used by the engine's thread; `records` is for any.

    A request names the drafters that it may be served with (`EngineRequest.arms`), the one to start with first. A
    drafter that fails on a sequence is left out for the rest of it.
    """

    def __init__(
        self,
        drafters: Mapping[str, AnyDrafter],
        cost: PassCost,
        hidden_size: int,
        clock: Callable[[], float] = time.perf_counter,
        resembles: Callable[[Sequence[int]], str] = lambda prompt: OTHER,
    ) -> None:
        """`cost` is that of the target's passes; `clock` in seconds, for what drafting takes; `resembles` says which
        workload a prompt's tokens look like (`resemblance`).
        """
        self._cost, self._clock = cost, clock
        self._hidden_size, self._resembles = hidden_size, resembles
        self._reading = {name: each for name, each in drafters.items() if isinstance(each, FeatureDrafter)}
        self._plain = {name: each for name, each in drafters.items() if not isinstance(each, FeatureDrafter)}
        layers = (layer for drafter in self._reading.values() for layer in drafter.feature_layers)
        self.feature_layers = tuple(dict.fromkeys(layers))
        self._places = {
            name: [self.feature_layers.index(layer) for layer in drafter.feature_layers]
            for name, drafter in self._reading.items()
        }
        self.records: dict[Kind, Record] = {}
        self._used: set[str] = set()  # drafters that have proposed, in this process

    def restore(self, tallies: Tallies) -> None:
        """Go on with what was learned before; called before the first request."""
        self.records = {kind: Record(_MEMORY, arms) for kind, arms in tallies.items()}

    def begin(self, request: EngineRequest) -> AutoDraft:
        sampling = request.sampling
        kind = Kind(request.adapter, sampling.temperature > 0.0, self._resembles(request.prompt))
        shared = self.records.setdefault(kind, Record(_MEMORY))
        shared.begun += 1  # many requests come with the same seed; they must not all draw the same
        dice = random.Random(f"{sampling.seed} {shared.begun}")
        return AutoDraft(
            Bandit(arms_of(request.arms, request.k), shared, dice),
            self._cost.row,
            {name: partial(self._plain[name].begin, request) for name in request.arms if name in self._plain},
            {
                name: Reader(partial(self._reading[name].begin, request), self._places[name], self._hidden_size)
                for name in request.arms
                if name in self._reading
            },
        )

    def propose_all(self, asks: Sequence[Ask]) -> list[TokenTree]:
        trees = [TokenTree.root(ask.tokens[-1]) for ask in asks]
        groups: dict[str, list[int]] = {}
        for i, ask in enumerate(asks):
            groups.setdefault(_auto(ask).choose(ask.budget.breakeven).drafter, []).append(i)
        for name, places in groups.items():
            if name != OFF.drafter:
                self._propose(name, [asks[i] for i in places], places, trees)
        return trees

    def _propose(self, name: str, asks: list[Ask], places: list[int], trees: list[TokenTree]) -> None:
        """All at once where the drafter can; if that fails, one by one, so that only the one at fault loses it."""
        started = self._clock()
        try:
            found = self._proposed(name, asks)
        except Exception:
            if len(asks) > 1:
                for ask, place in zip(asks, places, strict=True):
                    self._propose(name, [ask], [place], trees)
                return
            log.exception("%s failed; its request goes on with other methods", name)
            _auto(asks[0]).drop(name)
            return
        share = (self._clock() - started) / len(asks)
        for ask, place, tree in zip(asks, places, found, strict=True):
            trees[place] = tree
            _auto(ask).drafted(share, counts=name in self._used)
        self._used.add(name)

    def _proposed(self, name: str, asks: list[Ask]) -> Sequence[TokenTree]:
        narrowed = [(_auto(ask), ask.tokens, _auto(ask).budget(ask)) for ask in asks]
        if name in self._plain:
            return [auto.plain(name).propose(tokens, budget) for auto, tokens, budget in narrowed]
        caught_up = [Ask(auto.reading(name, tokens), tokens, budget) for auto, tokens, budget in narrowed]
        return self._reading[name].propose_all(caught_up)


def _auto(ask: Ask) -> AutoDraft:
    assert isinstance(ask.draft, AutoDraft)
    return ask.draft
