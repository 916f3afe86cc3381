"""The process of a command: standard streams, characters that a terminal may get, signals, Ctrl-C."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from services.client.channel import Stream


STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than tab and newline, characters that reverse the direction of text, lone surrogates."""

_Value = TypeVar("_Value")


def make_usable() -> None:
    """Open /dev/null in place of closed standard streams, whose numbers the next file or socket would get otherwise.
    Characters that an encoding lacks are written as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard(stream: IO[str]) -> None:
    """Redirect a standard stream to /dev/null: the interpreter flushes the rest of it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def reader_may_leave(stream: IO[str]) -> Iterator[None]:
    """A block that writes to a standard stream. If its reader closes it, the rest is discarded, and the command
    continues to its own exit code.
    """
    try:
        yield
    except BrokenPipeError:
        discard(stream)


def print_error(line: str) -> None:
    """Print a line to stderr, if that has a reader."""
    with reader_may_leave(sys.stderr):
        print(line, file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """`text` for a terminal, with a replacement for each character that would control it."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", text)


@contextmanager
def stop_signals(
    on_signal: Callable[[int], None], numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Calls `on_signal` with the number of each that comes during the block. Only on the main thread."""
    before = {number: signal.signal(number, lambda came, frame: on_signal(came)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def awaited(ask: Callable[[], _Value | None], seconds: float) -> _Value | None:
    """The first result of `ask` that is not None; None after `seconds` without one."""
    deadline = time.monotonic() + seconds
    while (answer := ask()) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return answer


class _End(Exception):
    """The values have ended."""


def until_interrupted(stream: Stream[_Value]) -> Generator[_Value, None, None]:
    """The values of the stream, which is closed at the end. Raises KeyboardInterrupt after Ctrl-C, and the stream's own
    errors.

    Another thread reads: a KeyboardInterrupt inside gRPC would leave its locks held, and the next call would wait
    forever. Only on the main thread.
    """
    return _interruptible(stream, stream.close)


def unless_interrupted(call: Callable[[], _Value], cancel: Callable[[], None]) -> _Value:
    """The call's result, interruptible like a stream; `cancel` ends the call, and is always called at the end."""
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
    except BaseException as error:  # raised again by the thread that waits
        arrived.put(error)
