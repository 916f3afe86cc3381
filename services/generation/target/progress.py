"""Progress of a start: how much of a long step is done, of how much, and the time left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

_SECONDS = 2.0  # between two lines


class Progress:
    """A step, which is logged while it takes longer. Used by one thread at a time."""

    def __init__(self, step: str, total: int, unit: str = "GB", clock: Callable[[], float] = time.monotonic) -> None:
        """`step` is what is being done. `total` is in bytes if the unit is GB; `clock` counts seconds."""
        self._step, self._total, self._unit, self._clock = step, total, unit, clock
        self._begun = self._logged = clock()
        self.done = 0

    def add(self, count: int) -> None:
        self.reach(self.done + count)

    def reach(self, done: int) -> None:
        """Note that so much is done."""
        self.done, now = done, self._clock()
        if now - self._logged < _SECONDS or not 0 < done < self._total:
            return
        self._logged, left = now, (now - self._begun) * (self._total - done) / done
        amounts = (f"{each / 1e9:.1f}" if self._unit == "GB" else str(each) for each in (done, self._total))
        _log.info("%s: %s of %s %s, %.0f s left", self._step, *amounts, self._unit, left)
