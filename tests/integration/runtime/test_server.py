"""The behaviour of every server, on a real server with real stubs; its process, and the spans that it sends."""

import asyncio
import itertools
import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.client.errors import decode_error
from services.runtime import calls
from services.runtime.access import Access
from services.runtime.credentials import new_token
from services.runtime.listening import CannotListen
from services.runtime.server import start_server
from tests.access import open_access_file
from tests.forked import Forked, ran
from tests.integration.runtime.scripted import SERVICE, ScriptedServicer, mount
from tests.serving import PATIENCE, Served, serving


@pytest.fixture(scope="module")
def servicer() -> ScriptedServicer:
    return ScriptedServicer()


@pytest.fixture(scope="module")
def served(servicer: ScriptedServicer) -> Iterator[Served]:
    with serving(mount(servicer)) as running:
        yield running


@pytest.fixture(scope="module")
def channel(served: Served) -> Iterator[grpc.Channel]:
    options = (("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0))
    with grpc.insecure_channel(served.address, options=options) as channel:
        yield channel


def _failure(channel: grpc.Channel, request_id: str) -> grpc.Call:
    with pytest.raises(grpc.RpcError) as caught:
        GenerationServiceStub(channel).Generate(pb.GenerateRequest(request_id=request_id))
    assert isinstance(caught.value, grpc.Call)
    return caught.value


def test_a_bug_is_internal_and_tells_nothing_but_the_request_id(
    channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    failure = _failure(channel, "bug")
    trailers = dict(failure.trailing_metadata() or ())
    assert failure.code() is grpc.StatusCode.INTERNAL
    assert b"secret detail" not in trailers["grpc-status-details-bin"] + failure.details().encode()
    assert trailers["kolm-request-id"].encode() in trailers["grpc-status-details-bin"]
    assert "a secret detail of the implementation" in caplog.text


def test_a_callers_request_id_comes_back(channel: grpc.Channel) -> None:
    stub = GenerationServiceStub(channel)
    _, call = stub.Generate.with_call(pb.GenerateRequest(), metadata=(("kolm-request-id", "mine"),))
    assert ("kolm-request-id", "mine") in call.trailing_metadata()


@pytest.mark.parametrize("script", ["endless", "torrent"])
def test_a_cancelled_stream_closes_the_servicers_generator(
    channel: grpc.Channel, servicer: ScriptedServicer, script: str
) -> None:
    servicer.closed.clear()
    request = pb.GenerateStreamRequest(request=pb.GenerateRequest(request_id=script))
    stream = GenerationServiceStub(channel).GenerateStream(request)
    next(stream)
    stream.cancel()
    assert servicer.closed.wait(timeout=60)


def test_a_caller_that_does_not_read_is_cut_off_and_told_so(
    channel: grpc.Channel, servicer: ScriptedServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "STALLED_SECONDS", 0.2)
    servicer.closed.clear()
    request = pb.GenerateStreamRequest(request=pb.GenerateRequest(request_id="torrent"))
    stream = GenerationServiceStub(channel).GenerateStream(request)
    next(stream)
    assert servicer.closed.wait(timeout=60)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in stream:
            pass
    assert (caught.value.code(), decode_error(caught.value).reason) == (grpc.StatusCode.ABORTED, "SLOW_READER")


@settings(deadline=None)
@given(junk=st.binary(max_size=200), method=st.sampled_from(["Generate", "Tokenize", "GetModelInfo"]))
def test_junk_bytes_are_the_callers_fault_or_a_request(channel: grpc.Channel, junk: bytes, method: str) -> None:
    call = channel.unary_unary(f"/{SERVICE}/{method}").future(junk, timeout=60)
    assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)


def test_junk_bytes_to_a_streaming_method_are_invalid(channel: grpc.Channel) -> None:
    stream = channel.unary_stream(f"/{SERVICE}/GenerateStream")(b"\xff\xff\xff", timeout=60)
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_five_megabytes_reach_validation_and_seventeen_do_not(channel: grpc.Channel) -> None:
    stub = GenerationServiceStub(channel)
    assert stub.Generate(pb.GenerateRequest(prompt="x" * 5_000_000)).choices[0].text == "5000000 characters"
    with pytest.raises(grpc.RpcError) as caught:
        stub.Generate(pb.GenerateRequest(prompt="x" * 17_000_000))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_calls_are_counted_by_method_and_code(served: Served, channel: grpc.Channel) -> None:
    labels = {"service": SERVICE, "method": "Generate", "code": "RESOURCE_EXHAUSTED"}
    before = served.registry.get_sample_value("kolm_rpc_calls_total", labels) or 0
    assert _failure(channel, "full").code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert served.registry.get_sample_value("kolm_rpc_calls_total", labels) == before + 1
    for method, code in itertools.product(("Generate", "GetLoad"), ("UNKNOWN", "DATA_LOSS")):
        named = {"service": SERVICE, "method": method, "code": code}
        assert served.registry.get_sample_value("kolm_rpc_calls_total", named) == 0, named


def test_health_serves_until_the_server_drains() -> None:
    with serving(mount(ScriptedServicer())) as served, grpc.insecure_channel(served.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert stub.Check(request).status == health_pb2.HealthCheckResponse.SERVING
        served.on_loop(lambda: served.server.set_serving(SERVICE, False))
        assert stub.Check(request).status == health_pb2.HealthCheckResponse.NOT_SERVING
        served.on_loop(lambda: served.server.set_serving(SERVICE, True))
        assert stub.Check(request).status == health_pb2.HealthCheckResponse.SERVING
        served.on_loop(served.server.drain)
        assert stub.Check(request).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_port_in_use_is_refused_instead_of_shared(served: Served) -> None:
    with pytest.raises(CannotListen, match=served.address):
        asyncio.run(_start_once(served.address))


async def _start_once(address: str) -> None:
    await (await start_server([], address)).stop(None)


STUBBORN = "tests.integration.runtime.scripted"


@contextmanager
def _process(*flags: str) -> Iterator[tuple[Forked, str]]:
    """The stubborn server and its address, read from its first line."""
    with Forked(STUBBORN, "--listen=127.0.0.1:0", f"--principals={open_access_file()}", *flags) as process:
        line = process.stderr.readline()
        assert line.startswith("stubborn listening on ")
        yield process, line.split()[-1]


def _finish(process: Forked) -> str:
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
    code, output = ran(STUBBORN, "--listen", "nonsense")
    assert (code, output.startswith("--listen: expected host:port")) == (2, True)
    with _process() as (_, address):
        code, output = ran(STUBBORN, "--listen", address)
    assert (code, f"cannot listen on {address}" in output, "Traceback" in output) == (1, True, False)


def test_json_logs_are_json_from_the_first_line_to_the_last() -> None:
    with _process() as (_, address):
        command = [STUBBORN, "--log-format=json", f"--principals={open_access_file()}"]
        code, output = ran(*command, "--log-level=error", f"--listen={address}")
        environment = {**os.environ, "KOLM_STUBBORN_TYPO": "1"}
        with Forked(*command, "--log-level=warning", environment=environment) as free:
            first = [json.loads(free.stderr.readline())["message"] for _ in range(2)]
            free.send_signal(signal.SIGTERM)
            last = [json.loads(line) for line in _finish(free).splitlines()]
    assert (code, [json.loads(line)["service"] for line in output.splitlines()]) == (1, ["stubborn"])
    assert "KOLM_STUBBORN_TYPO is set, and nothing reads it" in first[0]
    assert first[1].startswith("stubborn listening on ")
    assert [(line["message"], line["service"]) for line in last] == [("stubborn stopped", "stubborn")]


def test_metrics_are_served_where_a_port_is_set() -> None:
    with _process("--metrics-port", "0") as (process, address):
        with grpc.insecure_channel(address) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        port = next(match[1] for line in process.stderr if (match := re.search(r"metrics on .*:(\d+)", line)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
            assert b'kolm_rpc_calls_total{code="OK",method="Check"' in page.read()


def test_calls_of_strangers_that_fail_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    token = new_token()
    access, options = Access(local=token), (("grpc.enable_http_proxy", 0),)
    with (
        serving(mount(ScriptedServicer()), access=access) as served,
        grpc.insecure_channel(served.address, options=options) as channel,
    ):
        stub = GenerationServiceStub(channel)
        for metadata, logged in (((), 0), ((("authorization", f"Bearer {token}"),), 1)):
            caplog.clear()
            with pytest.raises(grpc.RpcError):
                stub.Generate(pb.GenerateRequest(request_id="bug"), metadata=metadata)
            assert len([record for record in caplog.records if record.getMessage() == "call failed"]) == logged
