"""Turns of tenants at the grammar compiler: the tenant whose grammars have taken the fewest CPU seconds is next."""

from __future__ import annotations

import asyncio
from collections import deque

from services.generation.engine.request import EngineFull

MOST_WAITING = 16  # grammars of one tenant: a burst on a server with one tenant
_MOST_COUNTERS = 4096


class GrammarTurns:
    """Admits one grammar at a time, of the tenant whose grammars have taken the fewest CPU seconds.

    As in `WaitingQueue`, a tenant that had nothing waiting starts at the lowest count of those waiting. Used on one
    event loop.
    """

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        """`most_waiting`: of one tenant."""
        self._most_waiting, self._is_taken = most_waiting, False
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # by tenant; no line is empty
        self._seconds: dict[str, float] = {}
        self._floor = 0.0  # the count of the tenant that had the last turn

    async def take(self, tenant: str) -> None:
        """Wait for a turn, which lasts until `end`. Raises EngineFull if too many grammars of this tenant wait."""
        if tenant not in self._lines:
            self._lift(tenant)
        if self._is_taken:
            await self._wait(tenant)
        self._is_taken, self._floor = True, self._seconds.get(tenant, self._floor)  # `_lift` may have dropped it

    def end(self, tenant: str, seconds: float) -> None:
        """End the turn of `tenant`, whose grammar took `seconds` of CPU, and begin the next turn."""
        self._seconds[tenant] = self._seconds.get(tenant, self._floor) + seconds
        self._pass_on()

    async def _wait(self, tenant: str) -> None:
        line = self._lines.setdefault(tenant, deque())
        if len(line) >= self._most_waiting:
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
        """Give the turn to the next waiting grammar, if there is one."""
        self._is_taken = bool(self._lines)
        if self._lines:
            tenant = min(self._lines, key=lambda each: self._seconds[each])
            place = self._lines[tenant][0]
            self._leave(tenant, place)
            place.set_result(None)

    def _leave(self, tenant: str, place: asyncio.Future[None]) -> None:
        self._lines[tenant].remove(place)
        if not self._lines[tenant]:
            del self._lines[tenant]

    def _lift(self, tenant: str) -> None:
        if len(self._seconds) >= _MOST_COUNTERS:
            self._seconds = {each: self._seconds[each] for each in self._lines}
        lowest = min((self._seconds[each] for each in self._lines), default=self._floor)
        self._seconds[tenant] = max(self._seconds.get(tenant, 0.0), lowest)
