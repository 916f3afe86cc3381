"""The engine on its own thread, and its interface on an event loop."""

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
from functools import partial

from services.generation.engine.core import EngineCore
from services.generation.engine.events import Chunk, Event, Finished, Outcome, Sink
from services.generation.engine.request import EngineRequest, EngineStopped

log = logging.getLogger(__name__)
Answer = Callable[[Exception | None], None]
"""Called on the engine's thread with None if the sequences were accepted, or else with the error."""
IdleWork = Callable[[Callable[[], bool]], bool]
"""Work on the engine's thread when there are no requests. It is given a function that returns whether a request waits,
for which it should end soon; returns whether it is done, or else is called again later.
"""
_APART = 0.02
"""Seconds between two hand-overs of a sequence. A chunk costs the event loop half a millisecond, wakes up the process
that reads it, and takes the CPU away from a member of the team that computes the next pass.
"""

_IDLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Submission:
    requests: Sequence[EngineRequest]
    sink: Sink
    answer: Answer


class EngineThread:
    """Runs an `EngineCore` on a thread of its own. It uses no event loop, so that a slow reader cannot delay it.

    `submit_all` and `cancel` may be called from any thread.
    """

    def __init__(
        self,
        core: EngineCore,
        between_passes: Callable[[], None] = lambda: None,
        idle_work: IdleWork | None = None,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        """`between_passes` is called on the engine's thread after each pass, when sinks have got their events. After
        `idle_seconds` without requests `idle_work` is called, again after twice as many if it was not done, and unused
        memory is released.
        """
        self._core, self._between_passes = core, between_passes
        self._idle_work, self._idle_seconds = idle_work, idle_seconds
        self._mail: queue.SimpleQueue[_Submission | str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._door = threading.Lock()  # held while a submission is put into the mail, so that it is read
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

    def submit_all(self, requests: Sequence[EngineRequest], sink: Sink, answer: Answer) -> None:
        """Queue the sequences of a request, or none of them. `answer` is called between two passes, before any event,
        perhaps with an error of `EngineCore.add_all` or EngineStopped. Raises EngineStopped if the engine is not
        running.
        """
        with self._door:
            if not self.alive:
                raise EngineStopped("request_id", "the engine is not running")
            self._mail.put(_Submission(requests, sink, answer))

    def cancel(self, request_id: str) -> None:
        """End a request with finish reason `cancelled`; its sink still gets the events."""
        self._mail.put(request_id)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_mail()
                if not self._core.idle:
                    self._core.step()
                    self._between_passes()
        except BaseException as fault:  # a bug must end the requests and not leave their callers waiting
            log.exception("stopping the engine after a fault")
            self._fault = fault
        finally:
            with self._door:
                self._stopping = True
            self._core.abandon(None if self._fault is None else f"the engine stopped: {self._fault!r}")
            self._refuse_mail()
            self._between_passes()

    def _take_mail(self) -> None:
        """Take all mail; wait for some if there is nothing else to do."""
        while not self._stopping:
            try:
                message = self._next_mail()
            except queue.Empty:
                return
            if isinstance(message, str):
                self._core.cancel(message)
                self._core.retire()
                self._between_passes()
            elif message is not None:
                self._take(message)

    def _next_mail(self) -> _Submission | str | None:
        """The next mail. Raises queue.Empty if there is none, and something to compute."""
        while self._core.idle:
            with suppress(queue.Empty):
                return self._mail.get(timeout=self._idle_seconds)
            if self._idle_work is not None:
                if self._idle_work(lambda: not self._mail.empty()):
                    self._idle_work = None
                elif self._mail.empty():
                    self._idle_seconds *= 2
            self._core.release_memory()
            if self._idle_work is None:
                return self._mail.get()
        return self._mail.get(block=False)

    def _take(self, submission: _Submission) -> None:
        try:
            self._core.add_all(submission.requests, submission.sink)
        except Exception as error:
            submission.answer(error)
        except BaseException as panic:  # a panic in the grammars' library is not an Exception, which callers expect
            log.exception("starting a request failed")
            submission.answer(RuntimeError(f"the request cannot be started: {panic!r}"))
        else:
            submission.answer(None)

    def _refuse_mail(self) -> None:
        while not self._mail.empty():
            message = self._mail.get()
            if isinstance(message, _Submission):
                message.answer(EngineStopped("request_id", "the engine stopped"))


@dataclass(slots=True, eq=False)
class Ticket:
    """One sequence in the engine. `alone`: no other sequence ran at the same time, so its times are its own."""

    alone: bool = True


@dataclass(slots=True, eq=False)
class _Stream:
    """Events of a sequence on their way to `sink`. `chunk` and `finished` wait on the engine's thread."""

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
    """The engine on the running event loop, a `Backend`.

    The events of a pass reach the loop together. A chunk may wait for chunks of the next passes, up to `_APART`; the
    first chunk of a sequence and its end do not wait.
    """

    def __init__(
        self, core: EngineCore, clock: Callable[[], float] = time.perf_counter, idle_work: IdleWork | None = None
    ) -> None:
        """Start the engine's thread."""
        self._thread, self._clock = EngineThread(core, self._hand_over, idle_work), clock
        self._loop = asyncio.get_running_loop()
        self._open: set[Ticket] = set()
        self._held: dict[_Stream, None] = {}  # of the engine's thread: streams with waiting events, in their order
        self.load, self.totals, self.cancel = core.load, core.totals, self._thread.cancel
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.alive

    async def submit_all(self, requests: Sequence[EngineRequest], sink: Sink) -> list[Ticket]:
        """Queue the sequences of a request, numbered as its choices are, or none; `sink` gets their events on the loop.

        Do not cancel this call. Raises InvalidRequest, EngineFull, EngineStopped.
        """
        tickets, taken = self._queued(requests, sink)
        await taken
        return tickets

    def _queued(self, requests: Sequence[EngineRequest], sink: Sink) -> tuple[list[Ticket], asyncio.Future[None]]:
        """The tickets of sequences that the engine has in its mail, before any later `cancel`; the future is done when
        it has accepted or refused them. Raises EngineStopped.
        """
        tickets = [Ticket(alone=not self._open and len(requests) == 1) for _ in requests]
        for other in self._open:
            other.alone = False
        streams = {each.choice: _Stream(ticket, sink) for each, ticket in zip(requests, tickets, strict=True)}

        def held(event: Event) -> None:
            stream = streams[event.choice]
            stream.put(event)
            self._held[stream] = None

        taken: asyncio.Future[None] = self._loop.create_future()
        self._thread.submit_all(requests, held, lambda error: _call(self._loop, _settle, taken, error))
        self._open.update(tickets)
        taken.add_done_callback(partial(self._refused, tickets))
        return tickets, taken

    def _refused(self, tickets: list[Ticket], taken: asyncio.Future[None]) -> None:
        if taken.cancelled() or taken.exception() is not None:
            self._open.difference_update(tickets)

    def _hand_over(self) -> None:
        """Hand due events over to the event loop, in one call. Runs on the engine's thread."""
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

    async def complete(self, request: EngineRequest) -> tuple[Outcome, Ticket]:
        """Run one sequence to its end. A caller that is cancelled cancels it."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        (ticket,), taken = self._queued((request,), events.put_nowait)
        try:
            await asyncio.shield(taken)
            while not isinstance(event := await events.get(), Finished):
                pass
        except asyncio.CancelledError:
            self.cancel(request.request_id)
            raise
        return event.outcome, ticket

    async def stop(self) -> None:
        """Stop the engine. Running sequences end as cancelled, and their events are delivered."""
        await asyncio.to_thread(self._thread.stop)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    """Call a function on the loop, from the engine's thread. Does nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


def _settle(taken: asyncio.Future[None], error: Exception | None) -> None:
    if taken.done():
        return
    if error is None:
        taken.set_result(None)
    else:
        taken.set_exception(error)
