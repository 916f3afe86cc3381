"""The turn to draft, which belongs to one method or none, by the time that drafts have saved.

A gain is of one pass of one sequence, in tokens: the seconds that its draft saved (`economics.seconds_saved`) over
the seconds of a token without drafts. Methods, requests and loads have no other measure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from services.generation.engine.cost import OUTLIER, Pace
from services.generation.engine.economics import MEMORY, SHARED_MEMORY, TEMPERATURE_BANDS
from services.generation.engine.request import EngineRequest

TURN = 8
"""Passes between two choices, and the tokens that a trial of another method may cost at most: one a pass."""
EXPLORATION = 0.005
"""Tokens a pass that may be lost: by a method that has its turn, and by trials of others."""
NEW = 3
"""Requests from which the gain of a method is known: in fewer it drafted well or badly because of their texts."""
MOST_KINDS = 1024
"""Kinds of requests that are remembered, a few kilobytes each; the least recently seen goes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The method of the next passes, None for no drafts, and the tokens that its trial takes from those earned."""

    method: str | None
    passes: int = TURN
    price: float = 0.0


def choose(gains: Mapping[str, float], new: Collection[str], earned: float) -> Choice:
    """The method with the highest expected gain, or none if each is expected to lose. Of the others the best `new`
    one instead, or the best one once the passes have `earned` its trial.

    `gains` by method, the preferred one first: it wins among equals. A trial has a highest price, for an expectation
    may date from a time when something held the method up.
    """
    ranked = sorted(gains, key=gains.__getitem__, reverse=True)
    best = ranked.pop(0) if ranked and gains[ranked[0]] >= -EXPLORATION else None
    if not ranked:
        return Choice(best)
    trial = next((method for method in ranked if method in new), None)
    if trial is not None:
        return Choice(trial)
    loss = (gains[best] if best is not None else 0.0) - gains[ranked[0]]
    price = TURN * min(max(loss, EXPLORATION), 1.0)
    return Choice(ranked[0], price=price) if earned >= price else Choice(best)


@dataclass(slots=True)
class _Sum:
    gain: float = 0.0
    passes: float = 0.0
    once: float = 0.0  # extra time of first drafts, in tokens
    firsts: float = 0.0

    def add(self, gain: float, once: float, memory: float) -> None:
        self.gain = memory * self.gain + gain
        self.passes = memory * self.passes + 1.0
        self.once = memory * self.once + once
        self.firsts = memory * self.firsts + (once > 0.0)

    def mean(self, expected: float) -> float:
        """The mean gain, of which `expected` is the prior with the weight of two turns."""
        return (self.gain + 2 * TURN * expected) / (self.passes + 2 * TURN)


@dataclass(slots=True)
class Known:
    """Gains of some requests by method and load, and the tokens that their passes have `earned` for trials. `memory`:
    the weight that a pass leaves to earlier ones.
    """

    memory: float
    earned: float = 0.0
    requests: float = 0.0
    passes: float = 0.0  # of them
    begun: Counter[tuple[str, int]] = field(default_factory=Counter)  # requests in which a method has had a turn
    sums: dict[tuple[str, int], _Sum] = field(default_factory=dict)

    def add(self, method: str, load: int, gain: float, once: float) -> None:
        self.sums.setdefault((method, load), _Sum()).add(gain, once, self.memory)

    def mean(self, method: str, load: int, expected: float) -> float:
        return self.sums.get((method, load), _Sum()).mean(expected)

    def is_new(self, method: str, load: int) -> bool:
        return self.begun[method, load] < NEW

    @property
    def length(self) -> float:
        """Passes of a request, a mean; a turn at least."""
        return max(self.passes / max(self.requests, 1.0), TURN)

    def once(self, method: str, load: int) -> float:
        """Time of a request's first draft, in tokens for each of its passes."""
        known = self.sums.get((method, load), _Sum())
        return known.once / max(known.firsts, 1.0) / self.length


def load_of(sequences: int) -> int:
    """Classes of 1, 2, up to 4, up to 8, … sequences: a loaded pass has no room to spare, and a draft costs more."""
    return (sequences - 1).bit_length()


class Gains:
    """Gains in all requests, by tenant, adapter, band of temperatures, and whether there is a prediction or a grammar.
    Tenants share no gains, so that the speed of one reveals nothing of another's text. `pace`: of the passes that the
    gains were measured in.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self._known: OrderedDict[tuple[object, ...], Known] = OrderedDict()

    def begin(self, request: EngineRequest, methods: Iterable[str]) -> Turns:
        """The turns of a request's methods, the preferred one first."""
        band = bisect_left(TEMPERATURE_BANDS, request.sampling.temperature)
        kind = request.tenant, request.adapter, band, bool(request.prediction), request.grammar is not None
        known = self._known.setdefault(kind, Known(SHARED_MEMORY))
        self._known.move_to_end(kind)
        if len(self._known) > MOST_KINDS:
            self._known.popitem(last=False)
        known.requests, known.passes = MEMORY * known.requests + 1.0, MEMORY * known.passes
        return Turns(methods, known)


class Turns:
    """The methods of one sequence. It reads no clock."""

    def __init__(self, methods: Iterable[str], known: Known | None = None) -> None:
        """`known`: gains of other requests; this one adds its own."""
        self._methods, self._own, self._known = list(methods), Known(MEMORY), known or Known(SHARED_MEMORY)
        self._load, self._begun = load_of(1), set[str]()
        self._apply(self._choice())

    @property
    def method(self) -> str | None:
        """The method whose turn it is."""
        return self._chosen.method

    def under(self, sequences: int) -> str | None:
        """The method whose turn it is in a pass with `sequences`; None in a rest, and if no method is left."""
        if (load := load_of(sequences)) != self._load:
            self._load = load
            self._apply(self._choice())
        return self.method

    def drop(self, method: str) -> None:
        """A method has failed; it gets no turn again."""
        if method in self._methods:
            self._methods.remove(method)
            if method == self.method:
                self._apply(self._choice())

    def passed(self, gain: float, once: float = 0.0) -> None:
        """Count a pass. `gain`: of the draft of the method whose turn it was, 0 in a rest. `once`: the time that the
        first draft of a request takes beside, in tokens; more than a request has passes never pays.
        """
        self._known.earned, self._known.passes = min(self._known.earned + EXPLORATION, TURN), self._known.passes + 1.0
        if self.method is not None:
            self._begin(self.method)
            for known in (self._own, self._known):
                known.add(self.method, self._load, max(gain, -OUTLIER), min(once, self._known.length))
        self._left -= 1
        if not self._left:
            self._apply(self._choice())

    @property
    def gains(self) -> dict[str, float]:
        """The mean gain of a pass by the methods that have drafted here, later passes counting more."""
        found: dict[str, _Sum] = {}
        for (method, _), each in self._own.sums.items():
            summed = found.setdefault(method, _Sum())
            summed.gain, summed.passes = summed.gain + each.gain, summed.passes + each.passes
        return {method: each.gain / each.passes for method, each in found.items()}

    def _choice(self) -> Choice:
        """A new method gets its turn after the first method's, one a request."""
        new = set[str]()
        if len(self._begun) == 1:
            new = {m for m in self._methods if m not in self._begun and self._known.is_new(m, self._load)}
        return choose({method: self.expected(method) for method in self._methods}, new, self._known.earned)

    def _apply(self, choice: Choice) -> None:
        self._chosen, self._left = choice, choice.passes
        self._known.earned -= choice.price
        if self._begun and choice.method is not None:
            self._begin(choice.method)

    def _begin(self, method: str) -> None:
        if method not in self._begun:
            self._begun.add(method)
            self._known.begun[method, self._load] += 1

    def expected(self, method: str) -> float:
        """The gain of a pass with the method's draft, by the passes of this request and of others."""
        gain = self._own.mean(method, self._load, self._known.mean(method, self._load, 0.0))
        return gain if method in self._begun else gain - self._known.once(method, self._load)
