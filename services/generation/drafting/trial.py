"""Whether something that costs rows now and may save passes later is worth having on."""

from __future__ import annotations

_EVERY = 512  # passes between trials, at least
_LENGTH = 8  # passes of a trial
_SHARE = 0.01  # of all tokens, that trials may cost
_FADE = 0.98


class Trial:
    """Switches a costly source of guesses on where it has paid, and tries it out again now and then: the seldomer, the
    more a trial costs.
    """

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._waited = 0  # passes since the last trial
        self._left = 0  # of a trial
        self._on = 0.0  # passes with the source on, faded
        self._gain = 0.0  # tokens it was right about, faded alike

    def wanted(self, cost: float) -> bool:
        """Whether the next pass should have the source, at a cost of so many tokens' worth of rows."""
        self._waited += 1
        if self._waited >= max(_EVERY, _LENGTH * cost / _SHARE):
            self._waited, self._left = 0, _LENGTH
        trying, self._left = self._left > 0, max(0, self._left - 1)
        paying = self._on >= _LENGTH / 2 and self._gain / self._on > cost
        if not (self._always or trying or paying):
            return False
        self._on = self._on * _FADE + 1.0
        self._gain *= _FADE
        return True

    def gained(self) -> None:
        """A token from the source was right."""
        self._gain += 1.0
