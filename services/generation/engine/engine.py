"""The engine's thread, and the engine as an event loop sees it."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from services.generation.engine.core import EngineCore
from services.generation.engine.events import Chunk, Counts, Event, Finished, Outcome, Sink
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


Answer = Callable[[BaseException | None], None]
"""Called on the engine's thread: None where it has taken the sequences, else why not."""


@dataclass(frozen=True, slots=True)
class _Submission:
    requests: Sequence[EngineRequest]
    sink: Sink
    answer: Answer


class Engine:
    """Owns the thread that the target runs on; nothing here touches an event loop, and a slow reader cannot hold it up.

    `submit_all` and `cancel` may be called from any thread.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._mail: queue.SimpleQueue[_Submission | str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._door = threading.Lock()  # who puts a submission into the mail is sure that it is read
        self._stopping = False
        self.between_passes: Callable[[], None] = lambda: None  # on the engine's thread, after what sinks were given
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

    def submit_all(self, requests: Sequence[EngineRequest], sink: Sink, answer: Answer) -> None:
        """Queue the sequences of a request, or none of them. `answer` comes between two passes, before any event; with
        an error of `EngineCore.add_all`, or EngineStopped. Raises EngineStopped where the engine is not running.
        """
        with self._door:
            if not self.alive:
                raise EngineStopped("request_id", "the engine is not running")
            self._mail.put(_Submission(requests, sink, answer))

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
                    self.between_passes()
        except BaseException as fault:  # a bug here must end the requests, not leave their callers waiting
            log.exception("the engine stopped")
            self._fault = fault
        finally:
            with self._door:
                self._stopping = True
            self._core.abandon(None if self._fault is None else f"the engine stopped: {self._fault!r}")
            self._refuse_mail()
            self.between_passes()

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
                self.between_passes()
            elif message is not None:
                self._take(message)

    def _take(self, submission: _Submission) -> None:
        try:
            self._core.add_all(submission.requests, submission.sink)
        except BaseException as error:  # a panic in the grammars' library is not an Exception
            submission.answer(error)
        else:
            submission.answer(None)

    def _refuse_mail(self) -> None:
        while not self._mail.empty():
            message = self._mail.get()
            if isinstance(message, _Submission):
                message.answer(EngineStopped("request_id", "the engine stopped"))


@dataclass(slots=True, eq=False)
class Ticket:
    """One sequence in the engine. `alone`: no other ran at the same time, so its times are its own."""

    alone: bool = True


_APART = 0.02
"""Seconds between two hand-overs of a sequence. A chunk costs the event loop half a millisecond, wakes up the process
that reads it, and takes the CPU away from a member of the team that computes the next pass.
"""


@dataclass(slots=True, eq=False)
class _Stream:
    """A sequence's events on their way to `sink`. `chunk` and `finished` wait on the engine's thread."""

    ticket: Ticket
    sink: Sink  # of the event loop
    chunk: Chunk | None = None
    finished: Finished | None = None
    handed_over: float = -math.inf

    def put(self, event: Event) -> None:
        if isinstance(event, Finished):
            self.finished = event
        else:
            self.chunk = event if self.chunk is None else self.chunk.followed_by(event)

    def take(self, now: float) -> list[Event]:
        events = [event for event in (self.chunk, self.finished) if event is not None]
        self.chunk, self.handed_over = None, now
        return events


class AsyncEngine:
    """On one event loop.

    The events of a pass reach the loop together. A chunk may wait for those of the next passes, up to `_APART`; the
    first of a sequence and its end never do.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine, self._clock = engine, clock
        self._open: set[Ticket] = set()
        self._held: dict[_Stream, None] = {}  # of the engine's thread: streams with events that wait, in their order
        self._loop: asyncio.AbstractEventLoop
        engine.between_passes = self._hand_over

    @property
    def alive(self) -> bool:
        return self._engine.alive

    def load(self) -> Load:
        return self._engine.load()

    @property
    def totals(self) -> Counts:
        """Counts of all sequences since the start."""
        return self._engine.totals

    async def submit_all(self, requests: Sequence[EngineRequest], sink: Sink) -> list[Ticket]:
        """Queue the sequences of a request, numbered as its choices are, or none; `sink` gets their events on the loop.

        Do not cancel this call. Raises InvalidRequest, EngineFull, EngineStopped.
        """
        self._loop = loop = asyncio.get_running_loop()
        tickets = [Ticket(alone=not self._open and len(requests) == 1) for _ in requests]
        for other in self._open:
            other.alone = False
        self._open.update(tickets)
        streams = {each.choice: _Stream(ticket, sink) for each, ticket in zip(requests, tickets, strict=True)}

        def held(event: Event) -> None:
            stream = streams[event.choice]
            stream.put(event)
            self._held[stream] = None

        taken: asyncio.Future[None] = loop.create_future()
        try:
            self._engine.submit_all(requests, held, lambda error: _call(loop, _settle, taken, error))
            await taken
        except BaseException:
            self._open.difference_update(tickets)
            raise
        return tickets

    def _hand_over(self) -> None:
        """On the engine's thread: what is due goes to the event loop, all at once."""
        now = self._clock()
        due = [each for each in self._held if each.finished or now - each.handed_over >= _APART]
        for stream in due:
            del self._held[stream]
        if due:
            _call(self._loop, self._arrived, [(stream, stream.take(now)) for stream in due])

    def _arrived(self, events: list[tuple[_Stream, list[Event]]]) -> None:
        for stream, each in events:
            for event in each:
                stream.sink(event)
            if stream.finished is not None:
                self._open.discard(stream.ticket)

    def cancel(self, request_id: str) -> None:
        """End all sequences of a request, if there are any; their last events still come."""
        self._engine.cancel(request_id)

    async def complete(self, request: EngineRequest) -> tuple[Outcome, Ticket]:
        """Run one sequence to its end. A caller that is cancelled cancels it."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        submitted = asyncio.ensure_future(self.submit_all((request,), events.put_nowait))
        try:
            (ticket,) = await asyncio.shield(submitted)
            while not isinstance(event := await events.get(), Finished):
                pass
        except asyncio.CancelledError:
            submitted.add_done_callback(lambda _: self.cancel(request.request_id))
            raise
        return event.outcome, ticket

    async def stop(self) -> None:
        """Sequences still running end as cancelled, their events delivered."""
        await asyncio.to_thread(self._engine.stop)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    """On the loop, from the engine's thread; nothing where the loop is gone, and nobody waits."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


def _settle(taken: asyncio.Future[None], error: BaseException | None) -> None:
    if taken.done():
        return
    if error is None:
        taken.set_result(None)
    else:
        taken.set_exception(error)
