"""Real processes, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from tests.access import everybodys_file

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 240.0  # seconds; only a test that fails gets there


@contextmanager
def _process(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The stubborn server and its address, read from the line that says so."""
    command = [sys.executable, "-m", "tests.integration.runtime.stubborn", "--listen", "127.0.0.1:0", *flags]
    command += ["--principals", str(everybodys_file())]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("stubborn listening on ")
            yield process, line.split()[-1]
        finally:
            process.kill()


def _finish(process: subprocess.Popen[str]) -> str:
    _, talk = process.communicate(timeout=PATIENCE)
    return talk


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_an_idle_server_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "run" / "ready"
    with _process("--ready-file", str(ready)) as (process, address):
        assert ready.read_text() == address + "\n"
        process.send_signal(number)
        assert "stubborn stopped" in _finish(process)
        assert process.returncode == 0
        assert not ready.exists()


def test_the_first_signal_drains_and_the_second_stops_at_once() -> None:
    with _process("--grace-seconds", "3600") as (process, address), grpc.insecure_channel(address) as channel:
        request = pb.GenerateStreamRequest(request=pb.GenerateRequest(request_id="endless"))
        stream = GenerationServiceStub(channel).GenerateStream(request)
        assert next(stream).HasField("started")
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert "stubborn stopped" in _finish(process)
        assert process.returncode == 0
        with pytest.raises(grpc.RpcError):
            next(stream)


def test_running_calls_are_cancelled_when_the_grace_period_is_over() -> None:
    with _process("--grace-seconds", "0.05") as (process, address), grpc.insecure_channel(address) as channel:
        request = pb.GenerateStreamRequest(request=pb.GenerateRequest(request_id="endless"))
        stream = GenerationServiceStub(channel).GenerateStream(request)
        next(stream)
        process.send_signal(signal.SIGTERM)
        assert "stubborn stopped" in _finish(process)
        assert process.returncode == 0


def test_wrong_settings_and_a_taken_port_are_messages_with_exit_codes() -> None:
    command = [sys.executable, "-m", "tests.integration.runtime.stubborn", "--listen"]
    usage = subprocess.run([*command, "nonsense"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (usage.returncode, usage.stderr.startswith("--listen: expected host:port")) == (2, True)
    with _process() as (_, address):
        taken = subprocess.run([*command, address], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert taken.returncode == 1
    assert f"cannot listen on {address}" in taken.stderr
    assert "Traceback" not in taken.stderr


def test_a_taken_metrics_port_is_a_message_too() -> None:
    with _process() as (_, address):
        command = [sys.executable, "-m", "tests.integration.runtime.stubborn", "--metrics-port", address.split(":")[1]]
        taken = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (taken.returncode, f"cannot listen on {address}" in taken.stderr) == (1, True)


def test_json_logs_are_json_from_the_first_line_to_the_last() -> None:
    with _process() as (_, address):
        command = [sys.executable, "-m", "tests.integration.runtime.stubborn", "--log-format=json", "--log-level=error"]
        command += ["--principals", str(everybodys_file())]
        environment = {**os.environ, "KOLM_STUBBORN_TYPO": "1"}
        taken = subprocess.run(
            [*command, f"--listen={address}"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
        )
        with subprocess.Popen(
            [*command, "--log-level=warning"], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment
        ) as free:
            assert free.stderr is not None
            first = [json.loads(free.stderr.readline())["message"] for _ in range(2)]
            free.send_signal(signal.SIGTERM)
            last = [json.loads(line) for line in _finish(free).splitlines()]
    assert (taken.returncode, [json.loads(line)["service"] for line in taken.stderr.splitlines()]) == (1, ["stubborn"])
    assert "KOLM_STUBBORN_TYPO is set, and nothing reads it" in first[0]
    assert first[1].startswith("stubborn listening on ")
    assert [(line["message"], line["service"]) for line in last] == [("stubborn stopped", "stubborn")]


def test_metrics_are_served_where_a_port_is_set() -> None:
    with _process("--metrics-port", "0") as (process, address):
        with grpc.insecure_channel(address) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert process.stderr is not None
        port = next(match[1] for line in process.stderr if (match := re.search(r"metrics on .*:(\d+)", line)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
            assert b'kolm_rpc_calls_total{code="OK",method="Check"' in page.read()
