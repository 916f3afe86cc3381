"""Ctrl-C while a stream is read: the reader is never interrupted, the stream is closed, the handler is put back."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from services.cli.jobs.interruption import until_interrupted


class Hanging:
    """A stream of one value that then waits until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.interrupted = False
        self._values = iter(["first"])

    def __iter__(self) -> Hanging:
        return self

    def __next__(self) -> str:
        for value in self._values:
            return value
        try:
            self.closed.wait(60)
        except KeyboardInterrupt:  # what would leave a lock of gRPC held
            self.interrupted = True
            raise
        raise StopIteration

    def close(self) -> None:
        self.closed.set()


def test_control_c_ends_the_stream_and_reaches_nobody_who_reads_it() -> None:
    stream: Any = Hanging()
    before = signal.getsignal(signal.SIGINT)
    came = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal has to come while a value is waited for
        for value in until_interrupted(stream):
            came.append(value)
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    assert (came, stream.closed.is_set(), stream.interrupted) == (["first"], True, False)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_of_the_stream_is_raised_and_the_stream_closed() -> None:
    class Broken(Hanging):
        def __next__(self) -> str:
            raise ConnectionError("gone")

    stream: Any = Broken()
    with pytest.raises(ConnectionError, match="gone"):
        list(until_interrupted(stream))
    assert stream.closed.is_set()


def test_a_stream_that_ends_is_read_whole() -> None:
    stream: Any = Hanging()
    stream.closed.set()
    assert list(until_interrupted(stream)) == ["first"]
