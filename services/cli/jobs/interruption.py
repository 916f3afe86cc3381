"""Calls that Ctrl-C ends, on connections that are used again afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from services.client.channel import Stream

_Value = TypeVar("_Value")


class _End(Exception):
    """The values have ended."""


def until_interrupted(stream: Stream[_Value]) -> Generator[_Value, None, None]:
    """The values of the stream, which is closed at the end. Raises KeyboardInterrupt after Ctrl-C, and what it raises.

    Another thread reads: a KeyboardInterrupt inside of gRPC would leave its locks held, and the next call would wait
    for them for ever. Only on the main thread.
    """
    return _interruptible(stream, stream.close)


def unless_interrupted(call: Callable[[], _Value], cancel: Callable[[], None]) -> _Value:
    """The call's result, in the same way; `cancel` ends it, and is called at the end in any case."""
    (value,) = _interruptible((each() for each in (call,)), cancel)
    return value


def _interruptible(values: Iterable[_Value], stop: Callable[[], None]) -> Generator[_Value, None, None]:
    arrived: SimpleQueue[_Value | BaseException] = SimpleQueue()  # its put may interrupt its own get
    reader = Thread(target=_read, args=(values, arrived), daemon=True)
    before = signal.signal(signal.SIGINT, lambda number, frame: arrived.put(KeyboardInterrupt()))
    try:
        reader.start()
        while not isinstance(value := arrived.get(), _End):
            if isinstance(value, BaseException):
                raise value
            yield value
    finally:
        stop()
        reader.join()
        signal.signal(signal.SIGINT, before)


def _read(values: Iterable[_Value], arrived: SimpleQueue[_Value | BaseException]) -> None:
    try:
        for value in values:
            arrived.put(value)
        arrived.put(_End())
    except BaseException as error:  # raised again by whoever waits
        arrived.put(error)
