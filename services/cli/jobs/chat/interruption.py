"""A stream that Ctrl-C ends, on a connection that is used again afterwards."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from services.client.channel import Stream

_Value = TypeVar("_Value")


class _End(Exception):
    """The stream has ended."""


def until_interrupted(stream: Stream[_Value]) -> Iterator[_Value]:
    """The values of the stream, which is closed at the end. Raises KeyboardInterrupt after Ctrl-C, and what it raises.

    Another thread reads: a KeyboardInterrupt inside of gRPC would leave its locks held, and the next call would wait
    for them for ever. Only on the main thread.
    """
    arrived: SimpleQueue[_Value | BaseException] = SimpleQueue()  # its put may interrupt its own get
    reader = Thread(target=_read, args=(stream, arrived), daemon=True)
    before = signal.signal(signal.SIGINT, lambda number, frame: arrived.put(KeyboardInterrupt()))
    try:
        reader.start()
        while not isinstance(value := arrived.get(), _End):
            if isinstance(value, BaseException):
                raise value
            yield value
    finally:
        stream.close()
        reader.join()
        signal.signal(signal.SIGINT, before)


def _read(stream: Stream[_Value], arrived: SimpleQueue[_Value | BaseException]) -> None:
    try:
        for value in stream:
            arrived.put(value)
        arrived.put(_End())
    except BaseException as error:  # raised again by whoever waits
        arrived.put(error)
