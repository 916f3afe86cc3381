"""Several methods as one: for each pass of a sequence one drafts, and all that have drafted see what came of it.

Identity makes a change of method inside a request safe: what drafts can never change a token.
"""

from __future__ import annotations

import logging
import random
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from services.generation.drafting.auto.arm import OFF, arms_of
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.draft import AutoDraft, Drafted
from services.generation.drafting.auto.drafts import Drafts
from services.generation.drafting.auto.kept import Learned
from services.generation.drafting.auto.pace import Pace, Step
from services.generation.drafting.auto.price import Price
from services.generation.drafting.auto.reader import Reader
from services.generation.drafting.auto.resemblance import OTHER
from services.generation.drafting.auto.shadow import Shadow
from services.generation.drafting.auto.tally import Kind, Record
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Ask, Budget, Draft, FeatureDrafter
from services.generation.engine.request import EngineRequest
from services.generation.engine.speculation import AnyDrafter
from services.generation.engine.tree import TokenTree

log = logging.getLogger(__name__)

_MEMORY = 0.9995  # of the shared records, a pass
_LONG_ONES = 0.25  # share of sequences that are long, from which all are made ready for a change of method


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
        self._used = {OFF.drafter}  # drafters that have proposed, in this process
        self._pace = Pace()
        self._begun: weakref.WeakSet[AutoDraft] = weakref.WeakSet()  # while they last

    def restore(self, learned: Mapping[Kind, Learned]) -> None:
        """Go on with what was learned before; called before the first request."""
        self.records = {kind: Record(_MEMORY, *each) for kind, each in learned.items()}

    def begin(self, request: EngineRequest) -> AutoDraft:
        sampling = request.sampling
        kind = Kind(request.adapter, sampling.temperature > 0.0, self._resembles(request.prompt))
        shared = self.records.get(kind)
        if shared is None:
            shared = self.records[kind] = Record(_MEMORY)
        shared.begin()  # many requests come with the same seed; they must not all draw the same
        bandit = Bandit(arms_of(request.arms, request.k), shared, random.Random(f"{sampling.seed} {shared.begun}"))
        price = partial(self._price, kind)
        shadow = self._shadow_of(request, bandit, price)
        layers = self._layers(request, bandit, shadow, shared)
        names = [name for name in request.arms if layers or not self._places.get(name)]
        drafts = self._drafts(request, names, bandit.drop)
        draft = AutoDraft(bandit, price, drafts, partial(self._pace.saw, kind), layers, shadow)
        self._begun.add(draft)
        return draft

    def _layers(self, request: EngineRequest, bandit: Bandit, shadow: Shadow | None, shared: Record) -> tuple[int, ...]:
        """Those that are captured for it. None, and no head is asked, where no head drafts at first, none is held to be
        much better, and requests are rarely long: it mostly ends with what it began with, and features take time.
        """
        heads = [name for name in request.arms if self._places.get(name)]
        beside = shadow is not None and shadow.arm.drafter in heads
        if beside or shared.long >= _LONG_ONES or any(bandit.may_want(name) for name in heads):
            return self.feature_layers if heads else ()
        for name in heads:
            bandit.drop(name)
        return ()

    def _drafts(self, request: EngineRequest, names: Sequence[str], failed: Callable[[str], None]) -> Drafts:
        plain: dict[str, Callable[[], Draft]] = {
            name: partial(self._plain[name].begin, request) for name in names if name in self._plain
        }
        reading = {
            name: Reader(partial(self._reading[name].begin, request), self._places[name], self._hidden_size)
            for name in names
            if name in self._reading
        }
        return Drafts(plain, reading, failed)

    def _shadow_of(
        self, request: EngineRequest, bandit: Bandit, price: Callable[[str, Budget, float], Price]
    ) -> Shadow | None:
        """None where others are being drafted for, nor where a window was asked for, which reads the logits of a pass
        that there is not.
        """
        if request.window or any(not draft.over for draft in self._begun):
            return None
        arm = bandit.shadow()
        if arm is None:
            return None
        drafts = self._drafts(replace(request, window=0), [arm.drafter], lambda name: None)
        return Shadow(arm, bandit.arm, drafts, partial(self._alone, arm.drafter), price)

    def _price(self, kind: Kind, drafter: str, budget: Budget, drafting: float) -> Price:
        row = self._cost.row * budget.row_factor
        bare = row / budget.breakeven
        return Price(bare, row, drafting, self._pace.of(kind, drafter), self._pace.of(kind, OFF.drafter))

    def propose_all(self, asks: Sequence[Ask]) -> list[TokenTree]:
        began, shadowed = self._clock(), False
        groups: dict[str, list[Ask]] = {}
        for ask in asks:
            draft = _auto(ask)
            groups.setdefault(draft.choose().drafter, []).append(ask)
            shadowed = shadowed or draft.shadow is not None
        if shadowed:
            self._follow(asks, first=True)
        sequences = max(len(asks), asks[0].budget.sequences)
        step = Step(began, sequences, len(groups) + (sequences > len(asks)))
        for name, some in groups.items():
            self._propose(name, some, step)
        if shadowed:
            self._follow(asks, first=False)
        return [_auto(ask).tree for ask in asks]

    def _follow(self, asks: Sequence[Ask], *, first: bool) -> None:
        for ask in asks:
            _auto(ask).follow(ask, first=first, alone=len(asks) == 1)

    def _propose(self, name: str, asks: Sequence[Ask], step: Step) -> None:
        """All at once where the drafter can; if that fails, one by one, so that only the one at fault loses it."""
        started = self._clock()
        try:
            trees = self._proposed(name, [(_auto(ask).drafts, ask.tokens, _auto(ask).budget(ask)) for ask in asks])
        except Exception:
            if len(asks) > 1:
                for ask in asks:
                    self._propose(name, [ask], step)
                return
            log.exception("%s failed; its request goes on with other methods", name)
            _auto(asks[0]).drafts.drop(name)
            _auto(asks[0]).drafted(TokenTree.root(asks[0].tokens[-1]), None)
            return
        share, counts = (self._clock() - started) / len(asks), name in self._used
        for ask, tree in zip(asks, trees, strict=True):
            _auto(ask).drafted(tree, Drafted(ask.budget, step, share) if counts else None)
        self._used.add(name)

    def _alone(self, name: str, drafts: Drafts, tokens: list[int], budget: Budget) -> tuple[TokenTree, float] | None:
        """A shadow's tree, and the seconds that it took; None for the first one that a drafter ever makes."""
        started = self._clock()
        try:
            (tree,) = self._proposed(name, [(drafts, tokens, budget)])
            taken = self._clock() - started
            tree = tree.cut(budget.nodes + 1, budget.depth, sys.maxsize)  # an unknown token is a wrong one
            if tree.tokens[0] != tokens[-1]:
                tree = TokenTree.root(tokens[-1])
        except Exception:
            log.exception("%s failed in the shadow of another method", name)
            return None
        counts = name in self._used
        self._used.add(name)
        return (tree, taken) if counts else None

    def _proposed(self, name: str, asked: list[tuple[Drafts, list[int], Budget]]) -> Sequence[TokenTree]:
        if name == OFF.drafter:
            return [TokenTree.root(tokens[-1]) for _, tokens, _ in asked]
        if name in self._plain:
            return [drafts.plain(name).propose(tokens, budget) for drafts, tokens, budget in asked]
        caught_up = [Ask(drafts.reading(name, tokens), tokens, budget) for drafts, tokens, budget in asked]
        return self._reading[name].propose_all(caught_up)


def _auto(ask: Ask) -> AutoDraft:
    assert isinstance(ask.draft, AutoDraft)
    return ask.draft
