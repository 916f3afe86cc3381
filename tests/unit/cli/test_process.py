"""Standard streams, signals and Ctrl-C."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from services.cli.frame.process import until_interrupted
from services.cli.up.up import UpReporter
from services.runtime.settings import LogFormat
from tests.unit.ledger.vectors import VECTORS

MODELS = ("models", "list", "--json")
VERIFY = (
    "verify",
    str(VECTORS / "bundles/good.tar.gz"),
    "--trusted",
    str(VECTORS / "log/keys"),
    "--max-unreplayable=1",
)


def kolm(words: tuple[str, ...], redirected: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command whose streams a shell has redirected."""
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "services.cli", *words]
    environment = {"PYTHONPATH": ":".join(sys.path), "COLUMNS": "200", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
    done = kolm(MODELS, ">/dev/full")
    assert (done.returncode, done.stderr) == (1, "kolm: cannot write the output: No space left on device\n")


def test_a_closed_stream_changes_no_result() -> None:
    assert (kolm(VERIFY, ">&-").returncode, kolm(VERIFY, "<&- >&- 2>&-").returncode) == (0, 0)
    failed = kolm(("replay", "none.json"), "2>&-")
    assert (failed.returncode, failed.stdout) == (4, "")


def test_characters_that_an_encoding_does_not_have_are_escaped() -> None:
    done = kolm(VERIFY, "", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2713" in done.stdout


class Gone(io.StringIO):
    """A terminal, or the end of a pipe, that is not there any more."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_services_go_on_where_nobody_reads_them(form: LogFormat, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Gone(OSError(number, os.strerror(number))))
    reporter = UpReporter(form)
    for _ in range(2):
        reporter.line("ledger", "listening")


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
