"""`kolm up` before anything is loaded: taken ports, and Ctrl-C where a shell has SIGINT ignored."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.tiny_model import make_tiny_model

PATIENCE = 240.0
KOLM = (sys.executable, "-m", "services.cli", "up")
FREE = (
    "--generation-port=0",
    "--ledger-port=0",
    "--auditor-port=0",
    "--registry-port=0",
    "--explorer-port=0",
    "--http-port=0",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def test_a_taken_port_is_one_line_before_anything_is_started(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [*KOLM, f"--model={model}", f"--data-dir={tmp_path / 'data'}", *FREE, f"--auditor-port={port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    said, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert said == f"kolm: --auditor-port: cannot listen on 127.0.0.1:{port}: another program has the port"
    assert "kolm health" in hint
    assert not (tmp_path / "data").exists()


def test_a_service_says_so_too_before_it_loads_a_model(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ["--listen", address, "--state-dir", str(tmp_path)]
        command = [sys.executable, "-X", "importtime", "-m", "services.generation", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"cannot listen on {address}: another program has the port"
    assert "| torch" not in done.stderr


def test_control_c_stops_it_where_a_shell_has_it_ignored(model: Path, tmp_path: Path) -> None:
    command = [*KOLM, f"--model={model}", f"--data-dir={tmp_path / 'data'}", *FREE]
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    process = subprocess.Popen(background, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        assert "starting with" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert "SIGINT: stopping" in said
    assert process.returncode == 0
