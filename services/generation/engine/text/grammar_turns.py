"""Whose grammar is compiled next: fair among tenants by the seconds that theirs have taken."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.generation.engine.request import EngineFull

MOST_WAITING = 16  # grammars of one tenant: those of a burst, where a server has one tenant
_MOST_COUNTERS = 4096


class GrammarTurns:
    """One grammar at a time. The tenant whose grammars have taken the fewest seconds comes next.

    As in `WaitingQueue`, one that had nothing waiting begins no lower than those that wait. On one event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._is_taken = clock, False
        self._lines: dict[str | None, deque[asyncio.Future[None]]] = {}  # by tenant; none is empty
        self._seconds: dict[str | None, float] = {}
        self._floor = 0.0  # the seconds of the tenant that last had a turn

    @asynccontextmanager
    async def turn(self, tenant: str | None) -> AsyncIterator[None]:
        """Waits for it. Raises EngineFull where too many of this tenant wait."""
        if tenant not in self._lines:
            self._lift(tenant)
        if self._is_taken:
            await self._wait(tenant)
        self._is_taken, self._floor, started = True, self._seconds[tenant], self._clock()
        try:
            yield
        finally:
            self._seconds[tenant] = self._seconds.get(tenant, self._floor) + self._clock() - started
            self._pass_on()

    async def _wait(self, tenant: str | None) -> None:
        line = self._lines.setdefault(tenant, deque())
        if len(line) >= MOST_WAITING:
            waiting = f"{len(line)} constraints of yours wait to be compiled; send this one again later"
            raise EngineFull("structured_outputs", waiting)
        place = asyncio.get_running_loop().create_future()
        line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._pass_on()
            else:
                self._leave(tenant, place)
            raise

    def _pass_on(self) -> None:
        """To the next one that waits, which keeps the place taken."""
        self._is_taken = bool(self._lines)
        if self._lines:
            tenant = min(self._lines, key=lambda each: self._seconds[each])
            place = self._lines[tenant][0]
            self._leave(tenant, place)
            place.set_result(None)

    def _leave(self, tenant: str | None, place: asyncio.Future[None]) -> None:
        self._lines[tenant].remove(place)
        if not self._lines[tenant]:
            del self._lines[tenant]

    def _lift(self, tenant: str | None) -> None:
        if len(self._seconds) >= _MOST_COUNTERS:
            self._seconds = {each: self._seconds[each] for each in self._lines}
        lowest = min((self._seconds[each] for each in self._lines), default=self._floor)
        self._seconds[tenant] = max(self._seconds.get(tenant, 0.0), lowest)
