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

_TRIAL = 8  # passes after which it is judged again whose turn it is
_TOLERATED = 0.02  # tokens a pass that a method may lose and keep its turn
_REST, _LONGEST_REST = 32, 256  # passes without drafts where no method pays; each rest is twice as long
_WEIGHT = 16.0  # passes: what is known of other requests counts as much, and that without them there is no gain
_OWN_MEMORY, _SHARED_MEMORY = 0.98, 0.998  # decay of the counts each pass, of one request and of all
_FADE = 0.95  # decay of the shared counts each request: a method that stopped paying is tried again
_BANDS = (0.0, 0.4, 0.85)  # temperatures up to which gains are counted together
_FEW = 4  # sequences up to which a load is one
_MOST_KINDS = 1024  # of requests; the least recently seen goes


@dataclass(slots=True)
class _Sum:
    gain: float = 0.0
    passes: float = 0.0

    def add(self, gain: float, memory: float) -> None:
        self.gain = memory * self.gain + gain
        self.passes = memory * self.passes + 1.0

    def mean(self, expected: float) -> float:
        """The mean, where before any pass one was `expected`."""
        return (self.gain + _WEIGHT * expected) / (self.passes + _WEIGHT)


@dataclass(slots=True)
class Known:
    """Gains of some requests by method and load. `memory`: the decay of what is known, each pass."""

    memory: float
    sums: dict[tuple[str, int], _Sum] = field(default_factory=dict)

    def add(self, method: str, load: int, gain: float) -> None:
        self.sums.setdefault((method, load), _Sum()).add(gain, self.memory)

    def mean(self, method: str, load: int, expected: float) -> float:
        return self.sums.get((method, load), _Sum()).mean(expected)

    def fade(self) -> None:
        for each in self.sums.values():
            each.gain, each.passes = _FADE * each.gain, _FADE * each.passes


def load_of(sequences: int) -> int:
    """A loaded pass has no room to spare, so that a draft costs what it saves: loads are judged apart."""
    return (max(sequences, _FEW) - 1).bit_length()


class Gains:
    """Gains in all requests, by tenant, adapter and band of temperatures. Tenants do not even share speed. `pace`: of
    the passes that they were measured in.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self._known: OrderedDict[tuple[str | None, str | None, int], Known] = OrderedDict()

    def begin(self, request: EngineRequest, methods: Iterable[str]) -> Turns:
        """The turns of a request's methods, the preferred one first."""
        kind = request.tenant, request.adapter, bisect_left(_BANDS, request.sampling.temperature)
        known = self._known.setdefault(kind, Known(_SHARED_MEMORY))
        self._known.move_to_end(kind)
        if len(self._known) > _MOST_KINDS:
            self._known.popitem(last=False)
        known.fade()
        return Turns(methods, known)


class Turns:
    """The methods of one sequence. Pure: time is told, not read."""

    def __init__(self, methods: Iterable[str], known: Known | None = None) -> None:
        """`known`: of other requests, and told of this one."""
        self._methods, self._own, self._known = list(methods), Known(_OWN_MEMORY), known or Known(_SHARED_MEMORY)
        self._load, self._rest = load_of(1), _REST
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

    def passed(self, gain: float) -> None:
        """A pass is done. `gain`: of the draft of the method whose turn it was."""
        method = self.method
        if method is not None:
            self._own.add(method, self._load, gain)
            self._known.add(method, self._load, gain)
        self._left -= 1
        if not self._left:
            self._choose(rested=method is None)
            if method is not None and self.method is None:
                self._rest = min(2 * self._rest, _LONGEST_REST)

    @property
    def gains(self) -> dict[str, float]:
        """The mean gain of a pass by the methods that have drafted here, later passes counting more."""
        found: dict[str, _Sum] = {}
        for (method, _), each in self._own.sums.items():
            summed = found.setdefault(method, _Sum())
            summed.gain, summed.passes = summed.gain + each.gain, summed.passes + each.passes
        return {method: each.gain / each.passes for method, each in found.items()}

    def _choose(self, *, rested: bool = False) -> None:
        """The first method that is expected to pay. After a rest the best one is tried in any case."""
        found = next((method for method in self._methods if self.expected(method) >= -_TOLERATED), None)
        if found is not None:
            self._rest = _REST
        elif rested:
            found = max(self._methods, key=self.expected, default=None)
        self.method, self._left = found, self._rest if found is None else _TRIAL

    def expected(self, method: str) -> float:
        """The gain of a pass with its draft, by what this request has seen and others have."""
        return self._own.mean(method, self._load, self._known.mean(method, self._load, 0.0))
