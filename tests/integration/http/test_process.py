"""`kolm serve http` as a process: it starts without a generation server, says so, and stops when told to."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path


def get(address: str, path: str) -> tuple[int, dict[str, object]]:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_a_generation_server_that_is_away_is_said_to_be_away(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    flags = ["--generation", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    command = [sys.executable, "-m", "services.cli", "serve", "http", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while not ready.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.02)
        address = ready.read_text().strip()
        assert get(address, "/health") == (503, {"status": "unavailable"})
        status, answer = get(address, "/v1/models")
        assert (status, set(answer)) == (503, {"error"})
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, "http stopped" in said) == (0, True), said
    finally:
        process.kill()
        process.communicate()
