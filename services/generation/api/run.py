"""A request under way. It outlives the call that asked for it, because its receipts have to be issued."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from services.generation.engine.events import Chunk, Outcome
from services.generation.quotas.tenant_quotas import Grant
from services.generation.receipts.issuer import SignedPromise, SignedReceipt
from services.generation.receipts.speedup import Speedup
from services.generation.requests.resolution import Resolved


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished choice with its receipt. `ledger_index` is None while the ledger has not confirmed it."""

    choice: int
    outcome: Outcome
    receipt: SignedReceipt
    ledger_index: int | None
    verified: bool | None
    speedup: Speedup | None


@dataclass(slots=True, eq=False)
class Run:
    """Chunks and completed choices of one request, in the order in which they come. Read `events` once."""

    resolved: Resolved
    grant: Grant
    used_tokens: int = 0  # of prompt and outputs, once all have ended
    engine_id: str = field(default_factory=lambda: str(uuid.uuid4()))  # callers may use one request_id twice
    promise: SignedPromise | None = None  # as soon as the engine has taken it
    cancelled: bool = False
    ended: bool = False
    _queue: asyncio.Queue[Chunk | Completed | Exception | None] = field(default_factory=asyncio.Queue)

    def post(self, event: Chunk | Completed) -> None:
        self._queue.put_nowait(event)

    def end(self, error: Exception | None = None) -> None:
        """There are no more events; the reader gets `error` raised."""
        self.ended = True
        self._queue.put_nowait(error)

    async def events(self) -> AsyncIterator[Chunk | Completed]:
        """Events until every choice has completed. Raises the error that ended the whole run."""
        while (event := await self._queue.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event
