"""The explorer as a process: it starts without a ledger, says that there is none, and stops when told to."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from ledger.documents.receipt import SpecDecode
from ledger.encoding.stream_digest import StreamDigest
from tests.integration.monitor.processes import explorer, ledger
from tests.processes import PATIENCE, started
from tests.replacing import replace
from tests.unit.ledger.builders import KEYS, receipt, receipt_id, signed, verdict


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


def test_exact_over_no_token_is_not_shown_as_exact(tmp_path: Path) -> None:
    with ledger(tmp_path) as served, explorer(tmp_path, served) as url:
        address = url.removeprefix("http://")
        ended = replace(receipt(0).output, tokens=0, stream_digest=StreamDigest().hexdigest(), finish_reason="error")
        index = served.client.append(
            signed(receipt(0, output=ended, spec_decode=SpecDecode("off", "off", 0, 0, 0)))
        ).index
        served.client.append(signed(verdict(index, 0, tokens_compared=0)))
        for path in ("/receipts", f"/receipts/{receipt_id(0)}", "/verdicts"):
            status, _, page = get(address, path)
            assert (status, "nothing to compare" in page, 'class="badge ok' in page) == (200, True, False), path
        index = served.client.append(signed(receipt(1))).index
        served.client.append(signed(verdict(index, 1)))
        for path in ("/receipts", f"/receipts/{receipt_id(1)}", "/verdicts"):
            assert 'class="badge ok">exact' in get(address, path)[2], path
