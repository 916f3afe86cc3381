"""Standard streams that are closed, full, or in an encoding of few characters."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.views.services.services import UpTalk
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
    talk = UpTalk(form)
    for _ in range(2):
        talk.line("ledger", "listening")
