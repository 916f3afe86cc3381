"""The turn to draft, which is one method's or none's: judged by what drafts have brought beside what they cost.

A gain is of one pass of one sequence, in tokens: those that a draft brought, less its time over that of a token without
drafts. It is the one rule for methods, requests and loads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.generation.engine.cost import Pace
from services.generation.engine.request import EngineRequest

_TURN = 8  # passes after which it is judged again whose turn it is
_SPENT = 0.005  # tokens a pass that may be lost, by a method that has its turn and by trials of others
_NEW = 3  # requests whose gains say too little of others: a method drafted well or badly because of what they were
_SAVED, _DEAREST_TRIAL = 8.0, 7.9  # tokens that passes have earned for trials, and that a trial costs, at most
_LEAST, _MOST_ONCE = -4.0, 100.0  # tokens that a draft gains, and that a first one takes: what is beyond was held up
_WEIGHT = 16.0  # passes: what is known of other requests counts as much, and that without them there is no gain
_OWN_MEMORY, _SHARED_MEMORY = 0.98, 0.998  # decay of the counts each pass, of one request and of all
_REQUESTS_MEMORY = 0.95  # decay of how many passes requests take, each request
_BANDS = (0.0, 0.4, 0.85)  # temperatures up to which gains are counted together
_FEW = 4  # sequences up to which a load is one
_MOST_KINDS = 1024  # of requests; the least recently seen goes


@dataclass(slots=True)
class _Sum:
    gain: float = 0.0
    passes: float = 0.0
    once: float = 0.0  # what first drafts took besides
    firsts: float = 0.0

    def add(self, gain: float, once: float, memory: float) -> None:
        self.gain = memory * self.gain + gain
        self.passes = memory * self.passes + 1.0
        self.once = memory * self.once + once
        self.firsts = memory * self.firsts + (once > 0.0)

    def mean(self, expected: float) -> float:
        """The mean, where before any pass one was `expected`."""
        return (self.gain + _WEIGHT * expected) / (self.passes + _WEIGHT)


@dataclass(slots=True)
class Known:
    """Gains of some requests by method and load, and the tokens that passes have `earned` for trials. `memory`: the
    decay of what is known, each pass.
    """

    memory: float
    earned: float = 0.0
    requests: float = 0.0
    passes: float = 0.0  # of them
    begun: dict[tuple[str, int], int] = field(default_factory=dict)  # requests in which a method has had a turn
    sums: dict[tuple[str, int], _Sum] = field(default_factory=dict)

    def add(self, method: str, load: int, gain: float, once: float) -> None:
        self.sums.setdefault((method, load), _Sum()).add(gain, once, self.memory)

    def mean(self, method: str, load: int, expected: float) -> float:
        return self.sums.get((method, load), _Sum()).mean(expected)

    def is_new(self, method: str, load: int) -> bool:
        return self.begun.get((method, load), 0) < _NEW

    def once(self, method: str, load: int) -> float:
        """What a request's first draft takes besides, for each of its passes."""
        known, passes = self.sums.get((method, load), _Sum()), self.passes / max(self.requests, 1.0)
        return known.once / max(known.firsts, 1.0) / max(passes, _TURN)


def load_of(sequences: int) -> int:
    """A loaded pass has no room to spare, so that a draft costs what it saves: loads are judged apart."""
    return (max(sequences, _FEW) - 1).bit_length()


class Gains:
    """Gains in all requests, by tenant, adapter, band of temperatures, and whether there is a prediction or a grammar.
    Tenants do not even share speed. `pace`: of the passes that they were measured in.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self._known: OrderedDict[tuple[object, ...], Known] = OrderedDict()

    def begin(self, request: EngineRequest, methods: Iterable[str]) -> Turns:
        """The turns of a request's methods, the preferred one first."""
        band = bisect_left(_BANDS, request.sampling.temperature)
        kind = request.tenant, request.adapter, band, bool(request.prediction), request.grammar is not None
        known = self._known.setdefault(kind, Known(_SHARED_MEMORY))
        self._known.move_to_end(kind)
        if len(self._known) > _MOST_KINDS:
            self._known.popitem(last=False)
        known.requests, known.passes = _REQUESTS_MEMORY * known.requests + 1.0, _REQUESTS_MEMORY * known.passes
        return Turns(methods, known)


class Turns:
    """The methods of one sequence. Pure: time is told, not read."""

    def __init__(self, methods: Iterable[str], known: Known | None = None) -> None:
        """`known`: of other requests, and told of this one."""
        self._methods, self._own, self._known = list(methods), Known(_OWN_MEMORY), known or Known(_SHARED_MEMORY)
        self._load, self._begun, self._explored = load_of(1), set[str](), False
        self.method: str | None = None  # whose turn it is
        self._choose()

    def under(self, sequences: int) -> str | None:
        """The method whose turn it is in a pass with `sequences`; None in a rest, and where no method is left."""
        if (load := load_of(sequences)) != self._load:
            self._load = load
            self._choose()
        return self.method

    def drop(self, method: str) -> None:
        """A method has failed; it gets no turn again."""
        if method in self._methods:
            self._methods.remove(method)
            if method == self.method:
                self._choose()

    def passed(self, gain: float, once: float = 0.0) -> None:
        """A pass is done. `gain`: of the draft of the method whose turn it was, nothing in a rest. `once`: what it took
        besides, as the first draft of a request.
        """
        self._known.earned, self._known.passes = min(self._known.earned + _SPENT, _SAVED), self._known.passes + 1.0
        if self.method is not None:
            if self.method not in self._begun:
                self._begin(self.method)
            for known in (self._own, self._known):
                known.add(self.method, self._load, max(gain, _LEAST), min(once, _MOST_ONCE))
        self._left -= 1
        if not self._left:
            self._choose()

    @property
    def gains(self) -> dict[str, float]:
        """The mean gain of a pass by the methods that have drafted here, later passes counting more."""
        found: dict[str, _Sum] = {}
        for (method, _), each in self._own.sums.items():
            summed = found.setdefault(method, _Sum())
            summed.gain, summed.passes = summed.gain + each.gain, summed.passes + each.passes
        return {method: each.gain / each.passes for method, each in found.items()}

    def _choose(self) -> None:
        """The best method, or none where each is expected to lose. Of the others one that is new gets a turn behind it,
        one a request, and the best one once its trial is earned.

        No trial is too dear for ever, for what is expected of a method may be of a time when something held it up.
        """
        self._left = _TURN
        ranked = sorted(self._methods, key=self.expected, reverse=True)  # of those that are alike the preferred first
        self.method = ranked.pop(0) if ranked and self.expected(ranked[0]) >= -_SPENT else None
        if not ranked:
            return
        best = 0.0 if self.method is None else self.expected(self.method)
        price = min(_TURN * (best - self.expected(ranked[0])), _DEAREST_TRIAL)
        new = [m for m in ranked if m not in self._begun and self._known.is_new(m, self._load)]
        if new and self._begun and not self._explored:
            self.method, self._explored = new[0], True
            self._begin(self.method)
        elif self._known.earned > price:
            self._known.earned -= price
            self.method = ranked[0]

    def _begin(self, method: str) -> None:
        self._begun.add(method)
        known, key = self._known.begun, (method, self._load)
        known[key] = known.get(key, 0) + 1

    def expected(self, method: str) -> float:
        """The gain of a pass with its draft, by what this request has seen and others have."""
        gain = self._own.mean(method, self._load, self._known.mean(method, self._load, 0.0))
        return gain if method in self._begun else gain - self._known.once(method, self._load)
