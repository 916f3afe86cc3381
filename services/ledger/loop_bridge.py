"""Wake-ups of the event loop: one for all answers of a batch, one for all tasks that wait for the log to grow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_Value = TypeVar("_Value")


class FutureBridge:
    """Turns futures of other threads into awaitables of one event loop.

    A sequencer answers hundreds of callers with one transaction. `asyncio.wrap_future` would wake the loop through a
    pipe for each of them; here the first one does, and the others are found in the queue. `delivered` runs on the loop
    after each round.
    """

    def __init__(self, delivered: Callable[[], None]) -> None:
        self._delivered = delivered
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken = False

    def awaitable(self, answer: Future[_Value]) -> asyncio.Future[_Value]:
        """An awaitable for the result of `answer`. Cancelling it only ends the wait."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[_Value] = loop.create_future()

        def arrived(done: Future[_Value]) -> None:
            self._done.append((mine, done))
            if not self._woken:  # a race at worst wakes the loop twice
                self._woken = True
                loop.call_soon_threadsafe(self._deliver)

        answer.add_done_callback(arrived)
        return mine

    def _deliver(self) -> None:
        self._woken = False  # before looking: a later answer wakes the loop again
        while self._done:
            mine, done = self._done.popleft()
            if mine.done():
                continue
            error = done.exception()
            if error is None:
                mine.set_result(done.result())
            else:
                mine.set_exception(error)
        self._delivered()


class Growth:
    """Many tasks wait, one call wakes them all. On one event loop.

    Take `next()` before looking at the log and wait for it after: growth in between is then never missed.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Set at the first growth from now on."""
        return self._event

    def announce(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()
