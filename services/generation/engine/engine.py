"""The engine's thread, and the engine as an event loop sees it."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.generation.engine.core import EngineCore
from services.generation.engine.events import Counts, Event, Finished, Outcome, Sink
from services.generation.engine.request import EngineRequest, EngineStopped

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is, as of its last step."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    preemptions: int  # since the start
    reused_tokens: int  # of prompts, since the start: an earlier request had computed them


@dataclass(slots=True)
class _Submission:
    request: EngineRequest
    sink: Sink
    taken: threading.Event
    error: BaseException | None = None


class Engine:
    """Owns the thread that the target runs on; nothing here touches an event loop, and a slow reader cannot hold it up.

    `submit` and `cancel` may be called from any thread.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._mail: queue.SimpleQueue[_Submission | str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._stopping = False
        self._fault: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        """End the thread after the step in progress; sequences still running end as cancelled, with their events."""
        self._stopping = True
        self._mail.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Queue a sequence; returns once the engine has taken it, between two passes.

        Raises:
            InvalidRequest, EngineFull: see `EngineCore.add`; nothing was queued.
            EngineStopped: the engine is not running.
        """
        if not self.alive:
            raise EngineStopped("request_id", "the engine is not running")
        submission = _Submission(request, sink, threading.Event())
        self._mail.put(submission)
        while not submission.taken.wait(1.0):
            if not self._thread.is_alive():
                raise EngineStopped("request_id", "the engine stopped")
        if submission.error is not None:
            raise submission.error

    def cancel(self, request_id: str) -> None:
        """End a request with finish reason `cancelled`; its sink still gets the events."""
        self._mail.put(request_id)

    def load(self) -> Load:
        core = self._core
        return Load(
            core.running, core.waiting, core.blocks_used, core.blocks_total, core.preemptions, core.reused_tokens
        )

    @property
    def totals(self) -> Counts:
        """Counts of all sequences since the start."""
        return self._core.totals

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_mail()
                if not self._core.idle:
                    self._core.step()
        except BaseException as fault:  # a bug here must end the requests, not leave their callers waiting
            log.exception("the engine stopped")
            self._fault = fault
        finally:
            self._stopping = True
            self._core.abandon(None if self._fault is None else f"the engine stopped: {self._fault!r}")
            self._refuse_mail()

    def _take_mail(self) -> None:
        """Take all mail; wait for some if there is nothing else to do."""
        while not self._stopping:
            try:
                message = self._mail.get(block=self._core.idle)
            except queue.Empty:
                return
            if isinstance(message, str):
                self._core.cancel(message)
                self._core.retire()
            elif message is not None:
                self._take(message)

    def _take(self, submission: _Submission) -> None:
        try:
            self._core.add(submission.request, submission.sink)
        except BaseException as error:  # a panic in the grammars' library is no Exception
            submission.error = error
        submission.taken.set()

    def _refuse_mail(self) -> None:
        while not self._mail.empty():
            message = self._mail.get()
            if isinstance(message, _Submission):
                message.error = EngineStopped("request_id", "the engine stopped")
                message.taken.set()


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
