"""`kolm up` before anything is loaded: taken ports, and Ctrl-C where a shell has SIGINT ignored."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.tiny_gguf import make_tiny_gguf
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
    assert "kolm status" in hint
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


def bad_models(folder: Path) -> dict[str, Path]:
    whole = make_tiny_gguf(folder / "cut.gguf")
    whole.write_bytes(whole.read_bytes()[:-5000])
    (text := folder / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text('{"architectures": ["OtherForCausalLM"], "model_type": "other"}')
    shutil.copytree(
        make_tiny_model(folder / "whole"), folder / "no_weights", ignore=shutil.ignore_patterns("*.safetens*")
    )
    q2_k = {"blk.0.attn_q.weight": (10, np.zeros((256, 84), np.uint8))}
    unknown = make_tiny_gguf(folder / "q2_k.gguf", change_tensors=lambda tensors: tensors.update(q2_k))
    family = make_tiny_gguf(
        folder / "family.gguf", change_metadata=lambda m: m.update({"general.architecture": "rwkv"})
    )
    return {
        "cut": whole, "text": text, "config": folder / "other", "no weights": folder / "no_weights",
        "storage": unknown, "family": family,
    }  # fmt: skip


@pytest.mark.parametrize("fault", ["cut", "text", "config", "no weights", "storage", "family"])
def test_a_model_that_cannot_be_served_is_refused_once_before_anything_is_made(fault: str, tmp_path: Path) -> None:
    path, data = bad_models(tmp_path)[fault], tmp_path / "data"
    generation = (sys.executable, "-m", "services.generation", "--listen=127.0.0.1:0", f"--state-dir={data}")
    for command, code in ((*KOLM, f"--data-dir={data}", *FREE), 2), (generation, 1):
        done = subprocess.run(
            [*command, f"--model={path}"], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        said = done.stdout + done.stderr
        assert (done.returncode, said.count(str(path))) == (code, 1), said
        assert "Traceback" not in said
        assert not data.exists()


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
