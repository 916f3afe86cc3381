"""Which of a request's methods drafts for its next pass: a method that does not pay hands over to the next."""

from __future__ import annotations

from collections.abc import Iterable

_TRIAL = 8  # passes after which a method is judged, again and again
_TOLERATED = 0.03  # loss per pass, in times of a token without drafts, up to which a method keeps its turn
_REST, _LONGEST_REST = 16, 256  # passes without drafts once every method was tried; each rest is twice as long


class Switch:
    """The methods of one sequence in their order, and the one whose turn it is. Pure: time is told, not read."""

    def __init__(self, methods: Iterable[str]) -> None:
        self._methods = list(methods)
        self._turn = 0
        self._left, self._gain = _TRIAL, 0.0
        self._rest = _REST

    @property
    def method(self) -> str | None:
        """Whose turn it is; None during a rest, and where no method is left."""
        return self._methods[self._turn] if self._turn < len(self._methods) else None

    def drop(self, method: str) -> None:
        """A method has failed; it gets no turn again."""
        if method not in self._methods:
            return
        place = self._methods.index(method)
        del self._methods[place]
        if place == self._turn:
            self._begin(self._turn)
        elif place < self._turn:
            self._turn -= 1

    def passed(self, gain: float) -> None:
        """A pass is done. `gain`: what its draft saved less what it cost, in times of a token without drafts."""
        self._left -= 1
        self._gain += gain
        if self._left:
            return
        if self.method is None:
            self._begin(0)
        elif self._gain >= -_TOLERATED * _TRIAL:
            self._rest = _REST
            self._begin(self._turn)
        else:
            self._begin(self._turn + 1)

    def _begin(self, turn: int) -> None:
        self._turn, self._left, self._gain = turn, _TRIAL, 0.0
        if self.method is None:
            self._left, self._rest = self._rest, min(2 * self._rest, _LONGEST_REST)
