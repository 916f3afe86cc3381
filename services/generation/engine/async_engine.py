"""The engine as the event loop sees it: submissions on threads, events in asyncio queues."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.generation.engine.engine import Engine, Load
from services.generation.engine.events import Counts, Event, Finished, Outcome
from services.generation.engine.request import EngineRequest


@dataclass(slots=True, eq=False)
class Ticket:
    """One sequence in the engine. `alone`: no other ran at the same time, so its times are its own."""

    alone: bool = True


class AsyncEngine:
    """On one event loop. A queue holds at most what its own sequences emit, so a slow reader costs memory, not time."""

    def __init__(self, engine: Engine, submitters: int = 32) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(submitters, thread_name_prefix="submit")
        self._open: set[Ticket] = set()

    @property
    def alive(self) -> bool:
        return self._engine.alive

    def load(self) -> Load:
        return self._engine.load()

    @property
    def totals(self) -> Counts:
        """Counts of all sequences since the start."""
        return self._engine.totals

    async def submit(self, request: EngineRequest, events: asyncio.Queue[Event]) -> Ticket:
        """Queue a sequence; its events go into `events`. Do not cancel this call. Raises as `Engine.submit` does."""
        loop = asyncio.get_running_loop()
        ticket = Ticket(alone=not self._open)
        for other in self._open:
            other.alone = False
        self._open.add(ticket)

        def arrived(event: Event) -> None:
            if isinstance(event, Finished):
                self._open.discard(ticket)
            events.put_nowait(event)

        def sink(event: Event) -> None:
            loop.call_soon_threadsafe(arrived, event)

        try:
            await loop.run_in_executor(self._threads, self._engine.submit, request, sink)
        except BaseException:
            self._open.discard(ticket)
            raise
        return ticket

    def cancel(self, request_id: str) -> None:
        """End all sequences of a request, if there are any; their last events still come."""
        self._engine.cancel(request_id)

    async def complete(self, request: EngineRequest) -> tuple[Outcome, Ticket]:
        """Run one sequence to its end. A caller that is cancelled cancels it."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        submitted = asyncio.ensure_future(self.submit(request, events))
        try:
            ticket = await asyncio.shield(submitted)
            while not isinstance(event := await events.get(), Finished):
                pass
        except asyncio.CancelledError:
            submitted.add_done_callback(lambda _: self.cancel(request.request_id))
            raise
        return event.outcome, ticket

    async def stop(self) -> None:
        """Sequences still running end as cancelled, their events delivered."""
        await asyncio.to_thread(self._engine.stop)
        self._threads.shutdown(wait=False)
