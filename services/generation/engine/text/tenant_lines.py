"""Callers that wait for a free place, in a line for each tenant."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class TenantLines:
    """Lines of waiting callers. Used on one event loop, whose tasks resume in a later turn than they are admitted or
    cancelled in: a caller waits no longer from then on, though its place is in its line until it resumes.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # by tenant; no line is empty

    def count(self, tenant: str) -> int:
        """The number of a tenant's callers that wait."""
        return sum(not place.done() for place in self._lines.get(tenant, ()))

    @property
    def tenants(self) -> list[str]:
        """Tenants of which a caller waits, in the order of their first place."""
        return [tenant for tenant, line in self._lines.items() if not all(place.done() for place in line)]

    async def wait(self, tenant: str, give_back: Callable[[], None]) -> None:
        """Wait to be admitted. `give_back` is called if the caller leaves after that, before it resumes."""
        place = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(tenant, deque())
        line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                give_back()
            raise
        finally:
            line.remove(place)
            if not line:
                del self._lines[tenant]

    def admit(self, tenant: str) -> None:
        """Admit the tenant's caller that has waited longest, one of `tenants`."""
        next(place for place in self._lines[tenant] if not place.done()).set_result(None)
