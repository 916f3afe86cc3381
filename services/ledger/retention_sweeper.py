"""The sweeper carries out the retention policies of the log: it erases expired content, with an entry that
records it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime

from msgspec.structs import replace

from ledger.documents.erasure import Expiry, Retention, in_force, tenants_with_policy
from ledger.encoding.text_forms import timestamp
from ledger.errors import LedgerError
from ledger.log.reader import LedgerReader
from services.runtime.process import Outage

_log = logging.getLogger(__name__)

MOST_CONTENTS = 1000
"""The most contents that one entry erases, in one transaction."""


class RetentionSweeper:
    """On one event loop; blocking calls on threads. A crash between two entries leaves the rest to the next sweep."""

    def __init__(
        self,
        reader: LedgerReader,
        append: Callable[[Expiry], Awaitable[int]],
        clock: Callable[[], datetime],
        interval: float,
    ) -> None:
        """`append` signs as the log and returns the entry's index; `interval`: seconds between sweeps."""
        self._reader = reader
        self._append = append
        self._clock = clock
        self._interval = interval

    async def run(self) -> None:
        """Sweep periodically until cancelled. Run as a task."""
        outage = Outage(_log, "erase contents whose time is over", LedgerError, bugs=True)
        while True:
            with outage:
                await self.sweep()
            await asyncio.sleep(self._interval)

    async def sweep(self) -> int:
        """Erase all expired contents; returns their number. Raises LedgerError."""
        erased = 0
        now = timestamp(self._clock())
        for expiry in _expiries(await asyncio.to_thread(self._reader.retentions), now):
            while over := await asyncio.to_thread(self._reader.expired, expiry, MOST_CONTENTS):
                index = await self._append(replace(expiry, end_index=over[-1] + 1))
                erased += len(over)
                _log.info(
                    "erasing contents: entry %d, %d contents, policy of entry %d", index, len(over),
                    expiry.retention_index,
                )  # fmt: skip
        return erased


def _expiries(policies: Sequence[tuple[int, Retention]], now: str) -> Iterator[Expiry]:
    """The expiries of each policy in force at `now`, without a bound on the entries."""
    newest = in_force(policies)
    for tenant, (index, policy) in newest.items():
        before = policy.erases_before(now)
        if before is not None:
            others = () if tenant is not None else tenants_with_policy(newest)
            yield Expiry(index, tenant, others, before, 2**53 - 1, now)
