"""The auditor as a process: it answers health, and ends when and as it should."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.client.channel import Connection
from tests.fakes.tiny_model import make_tiny_model
from tests.fuzzing import flood

PATIENCE = 240.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@contextmanager
def auditor_process(directory: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m services.auditor`; killed at the end where it still runs."""
    command = [sys.executable, "-m", "services.auditor", f"--data-dir={directory}", "--listen=127.0.0.1:0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if "listening on" in line:
            return line.split()[-1]
    raise AssertionError("it ended before it listened")


def test_it_serves_health_and_stops_cleanly_also_while_the_ledger_is_away(tmp_path: Path, model: Path) -> None:
    with auditor_process(tmp_path, "--ledger=127.0.0.1:1", f"--model={model}") as process:
        connection = Connection(address_of(process))
        assert connection.serving()
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert "auditor stopped" in process.stderr.read()


def test_random_messages_are_answered_or_refused(tmp_path: Path, model: Path) -> None:
    with auditor_process(tmp_path, "--ledger=127.0.0.1:1", f"--model={model}") as process:
        flood(address_of(process))
        assert process.poll() is None


def test_a_key_that_others_can_read_is_refused_with_a_sentence(tmp_path: Path, model: Path) -> None:
    key = tmp_path / "keys" / "auditor.pem"
    key.parent.mkdir()
    key.write_text("not a key")
    with auditor_process(tmp_path, "--ledger=127.0.0.1:1", f"--model={model}") as process:
        assert process.wait(PATIENCE) == 1
        assert process.stderr is not None
        said = process.stderr.read()
    assert "others can read the auditor key" in said
    assert "Traceback" not in said


def test_a_rate_that_is_none_is_a_usage_error(tmp_path: Path, model: Path) -> None:
    with auditor_process(tmp_path, f"--model={model}", "--rate=1.5") as process:
        assert process.wait(PATIENCE) == 2
        assert process.stderr is not None
        assert "--rate" in process.stderr.read()


def test_the_base_has_to_be_named(tmp_path: Path) -> None:
    with auditor_process(tmp_path) as process:
        assert process.wait(PATIENCE) == 2
        assert process.stderr is not None
        assert "--model" in process.stderr.read()


def test_a_base_that_is_not_there_is_named_without_a_traceback(tmp_path: Path) -> None:
    with auditor_process(tmp_path, f"--model={tmp_path / 'nothing'}") as process:
        assert process.wait(PATIENCE) == 2
        assert process.stderr is not None
        said = process.stderr.read()
    assert f"--model: there is no model {tmp_path / 'nothing'}" in said
    assert "Traceback" not in said
