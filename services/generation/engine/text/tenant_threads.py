"""Threads for work on the texts of callers, in turns of tenants."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from services.generation.engine.text.tenant_lines import TenantLines

REMOTE_THREADS = 32  # that wait for another engine's tokenizer

_Made = TypeVar("_Made")


class TenantThreads:
    """Threads apart from those of the event loop, which write promises. One tenant has at most half of them, and a free
    thread goes to the waiting tenant that has the fewest. Used on one event loop.
    """

    def __init__(self, count: int) -> None:
        self._pool, self._count = ThreadPoolExecutor(count, "texts"), count
        self._busy = Counter[str]()  # threads by tenant
        self._lines = TenantLines()

    async def run(self, work: Callable[[], _Made], tenant: str) -> _Made:
        """The result of `work` on a thread, which stays the tenant's until it is done, also if the caller leaves."""
        if self._has_thread_for(tenant):
            self._busy[tenant] += 1
        else:
            await self._lines.wait(tenant, lambda: self._end(tenant))
        working = asyncio.get_running_loop().run_in_executor(self._pool, copy_context().run, work)
        working.add_done_callback(lambda done: self._end(tenant, done))
        return await asyncio.shield(working)

    def _has_thread_for(self, tenant: str) -> bool:
        return self._busy.total() < self._count and self._busy[tenant] < max(1, self._count // 2)

    def _pass_on(self) -> None:
        """Give free threads to waiting work."""
        while waiting := [each for each in self._lines.tenants if self._has_thread_for(each)]:
            tenant = min(waiting, key=self._busy.__getitem__)
            self._busy[tenant] += 1
            self._lines.admit(tenant)

    def _end(self, tenant: str, done: asyncio.Future[Any] | None = None) -> None:
        if done is not None and not done.cancelled():
            done.exception()  # marks it as retrieved: the caller may have left
        self._busy[tenant] -= 1
        if not self._busy[tenant]:
            del self._busy[tenant]
        self._pass_on()
