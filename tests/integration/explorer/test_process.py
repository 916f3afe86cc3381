"""The explorer as a process: it starts without a ledger, says that there is none, and stops when told to."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.processes import PATIENCE, started
from tests.unit.ledger.builders import KEYS


def get(address: str, path: str) -> tuple[int, str, str]:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["content-security-policy"], answer.read().decode()


def command(folder: Path) -> list[str]:
    flags = ["--ledger", "127.0.0.1:1", "--trusted-keys", str(folder / "trusted"), "--listen", "127.0.0.1:0"]
    return [sys.executable, "-m", "services.cli", "serve", "explorer", *flags]


def test_a_ledger_that_is_away_is_said_to_be_away(tmp_path: Path) -> None:
    (tmp_path / "trusted").mkdir()
    KEYS["log"].publish(tmp_path / "trusted")
    with started(command(tmp_path), tmp_path / "ready") as (process, address):
        assert get(address, "/health")[0] == 200
        status, policy, page = get(address, "/receipts")
        assert (status, "The ledger does not answer" in page) == (503, True)
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
        assert (process.returncode, "explorer stopped" in said) == (0, True), said


def test_an_explorer_without_keys_does_not_start(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, "cannot read trusted keys" in done.stderr) == (1, True), done.stderr
