"""How much of each tenant's content the ledger keeps, as it said last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from services.generation.ledger_link import LedgerUnreachable
from services.runtime.outage import Outage

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0


class StoredBytes:
    """On the event loop. Until the ledger has answered nobody has anything: the outbox limits receipts then."""

    def __init__(self, read: Callable[[], Awaitable[Mapping[str, int]]]) -> None:
        """`read` asks the ledger. It raises LedgerUnreachable."""
        self._read = read
        self._known: Mapping[str, int] = {}

    def of(self, tenant: str) -> int:
        return self._known.get(tenant, 0)

    async def refresh(self) -> None:
        """Raises LedgerUnreachable."""
        self._known = await self._read()

    async def follow(self) -> None:
        """Run it as a task."""
        outage = Outage(_log, "ask the ledger what it keeps of each tenant", LedgerUnreachable)
        while True:
            with outage:
                await self.refresh()
            await asyncio.sleep(_EVERY_SECONDS)
