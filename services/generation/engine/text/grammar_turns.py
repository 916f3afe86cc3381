"""Turns of tenants at the grammar compiler: the tenant whose grammars have taken the fewest CPU seconds is next."""

from __future__ import annotations

from services.generation.engine.request import EngineFull
from services.generation.engine.text.tenant_lines import TenantLines

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
        self._lines = TenantLines()
        self._seconds: dict[str, float] = {}
        self._floor = 0.0  # the count of the tenant that had the last turn

    async def take(self, tenant: str) -> None:
        """Wait for a turn, which lasts until `end`. Raises EngineFull if too many grammars of this tenant wait."""
        if not self._lines.count(tenant):
            self._lift(tenant)
        if self._is_taken:
            await self._wait(tenant)
        self._is_taken, self._floor = True, self._seconds.get(tenant, self._floor)  # `_lift` may have dropped it

    def end(self, tenant: str, seconds: float) -> None:
        """End the turn of `tenant`, whose grammar took `seconds` of CPU, and begin the next turn."""
        self._seconds[tenant] = self._seconds.get(tenant, self._floor) + seconds
        self._pass_on()

    async def _wait(self, tenant: str) -> None:
        if (count := self._lines.count(tenant)) >= self._most_waiting:
            waiting = f"{count} constraints of yours wait to be compiled; send this one again later"
            raise EngineFull("structured_outputs", waiting)
        await self._lines.wait(tenant, self._pass_on)

    def _pass_on(self) -> None:
        """Give the turn to the next waiting grammar, if there is one."""
        waiting = self._lines.tenants
        self._is_taken = bool(waiting)
        if waiting:
            self._lines.admit(min(waiting, key=self._seconds.__getitem__))

    def _lift(self, tenant: str) -> None:
        if len(self._seconds) >= _MOST_COUNTERS:
            self._seconds = {each: self._seconds[each] for each in self._lines.tenants}
        lowest = min((self._seconds[each] for each in self._lines.tenants), default=self._floor)
        self._seconds[tenant] = max(self._seconds.get(tenant, 0.0), lowest)
