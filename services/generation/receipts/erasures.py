"""Erasure of a receipt's content from drafters and from prefixes on disk."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection

from ledger.documents.erasure import Erasure, Expiry
from ledger.documents.signed_document import read_document
from ledger.encoding.text_forms import parse_timestamp, time_of, timestamp
from ledger.errors import LedgerError
from ledger.tree.entry import Entry
from services.generation.engine.drafter import Drafter
from services.generation.engine.prefix_disk import PrefixFolder
from services.generation.engine.request import RequestKey
from services.generation.ledger_link import LedgerUnreachable
from services.runtime.process import Outage

_log = logging.getLogger(__name__)

MOST_ISSUED = 65_536  # newest receipts whose outputs can be looked up


class Erasures:
    """Follows the ledger's erasures. Used on one event loop.

    Drafters keep text in memory only, so only receipts of this process matter to them. Prefixes on disk are deleted by
    their age, whatever process wrote them: those of the receipt's tenant, or of all tenants if it is not known.
    """

    def __init__(
        self, drafters: Collection[Drafter], read: Callable[[int], AsyncIterator[Entry]], every: float,
        prefixes: PrefixFolder | None = None,
    ) -> None:  # fmt: skip
        """`read` returns the erasures of the log from an index on; it is called every `every` seconds."""
        self._drafters, self._read, self._every, self._prefixes = drafters, read, every, prefixes
        self._issued: OrderedDict[str, tuple[str, RequestKey]] = OrderedDict()  # tenant and request by receipt id
        self._position = 0

    def issued(self, receipt_id: str, tenant: str, request: RequestKey) -> None:
        """Note the receipt of a request to the engine."""
        self._issued[receipt_id] = tenant, request
        if len(self._issued) > MOST_ISSUED:
            self._forget(next(iter(self._issued)))

    async def refresh(self) -> None:
        """Read new erasures from the ledger once. Raises LedgerUnreachable; the next call continues behind the last
        entry that was read.
        """
        async for entry in self._read(self._position):
            await self._take(entry)
            self._position = entry.index + 1

    async def follow(self) -> None:
        """Poll until cancelled. Returns immediately if no drafter and no disk keeps content."""
        outage = Outage(_log, "ask the ledger for erasures", LedgerUnreachable)
        while self._drafters or self._prefixes is not None:
            with outage:
                await self.refresh()
            await asyncio.sleep(self._every)

    async def _take(self, entry: Entry) -> None:
        """Apply an erasure, whatever key signed it: the log has accepted it, and forgetting a draft is always safe."""
        try:
            document = read_document(entry.envelope)
        except LedgerError as error:
            _log.warning("skipping entry %d: it is not a readable erasure: %s", entry.index, error)
            return
        if isinstance(document, Erasure):
            tenant, _ = self._issued.get(document.receipt_id, (None, None))
            self._forget(document.receipt_id)
            # The operator's clock dates the erasure, this machine's the receipt.
            until = max(document.issued_at, timestamp(time_of(document.receipt_id)))
            await self._erase(until, tenant)
        if isinstance(document, Expiry):
            await self._erase(document.issued_before, document.tenant, document.except_tenants)
            for receipt_id in [each for each in self._issued if self._covers(document, each)]:
                self._forget(receipt_id)

    async def _erase(self, until: str, tenant: str | None, but: Collection[str] = ()) -> None:
        if self._prefixes is not None:
            await asyncio.to_thread(self._prefixes.erase, parse_timestamp(until).timestamp(), tenant, but)

    def _covers(self, expiry: Expiry, receipt_id: str) -> bool:
        """Whether the expiry covers a receipt, by the time of issue in its id."""
        return expiry.covers(-1, self._issued[receipt_id][0], timestamp(time_of(receipt_id)))

    def _forget(self, receipt_id: str) -> None:
        if (issued := self._issued.pop(receipt_id, None)) is not None:
            for drafter in self._drafters:
                drafter.forget(*issued)
