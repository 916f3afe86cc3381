"""A channel within the process ends calls as one over a socket does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.client import errors
from services.client.errors import decode_error
from services.client.generation.runtime import AsyncRuntime
from services.runtime import calls
from services.runtime.access import Access
from services.runtime.server import RunningServer, start_server
from tests.access import open_access
from tests.integration.runtime.scripted import SERVICE, ScriptedServicer, mount

CHANNELS = ["in process", "socket"]


class Reached:
    def __init__(self, servicer: ScriptedServicer, server: RunningServer, registry: CollectorRegistry) -> None:
        self.servicer, self.server, self.registry = servicer, server, registry
        self.channels: dict[str, Any] = {
            "in process": server.channel,
            "socket": grpc.aio.insecure_channel(server.address, options=(("grpc.enable_http_proxy", 0),)),
        }

    def stub(self, channel: str) -> Any:
        return GenerationServiceStub(self.channels[channel])

    def stream(self, script: str, channel: str = "in process", timeout: float | None = None) -> Any:
        request = pb.GenerateStreamRequest(request=pb.GenerateRequest(request_id=script))
        return self.stub(channel).GenerateStream(request, timeout=timeout)


@pytest.fixture
async def reached() -> AsyncIterator[Reached]:
    async for each in _reached(open_access()):
        yield each


async def _reached(access: Access) -> AsyncIterator[Reached]:
    servicer, registry = ScriptedServicer(), CollectorRegistry()
    server = await start_server([mount(servicer)], "127.0.0.1:0", registry, access)
    found = Reached(servicer, server, registry)
    yield found
    await found.channels["socket"].close()
    await server.stop(None)


async def _failure(stream: Any) -> tuple[list[Any], grpc.StatusCode, Any]:
    """The messages before a stream failed, and its error."""
    messages = list[Any]()
    try:
        while (message := await stream.read()) is not grpc.aio.EOF:
            messages.append(message)
    except grpc.aio.AioRpcError as error:
        decoded = decode_error(error)
        return messages, error.code(), (type(decoded), str(decoded), decoded.reason)
    raise AssertionError("the stream has not failed")


async def test_answers_and_streams_are_those_of_a_socket(reached: Reached) -> None:
    both = []
    for channel in CHANNELS:
        stream, messages = reached.stream("", channel), []
        while (message := await stream.read()) is not grpc.aio.EOF:
            messages.append(message)
        both.append([await reached.stub(channel).Generate(pb.GenerateRequest(prompt="abc")), messages])
        assert await stream.read() is grpc.aio.EOF
    assert both[0] == both[1]
    assert [each.WhichOneof("event") for each in both[0][1]] == ["started", "finished"]


@pytest.mark.parametrize("script", ["bug", "bad field", "full", "halted"])
async def test_errors_are_those_of_a_socket(reached: Reached, script: str) -> None:
    ours, theirs = [await _failure(reached.stream(script, channel)) for channel in CHANNELS]
    assert ours == theirs
    unary = []
    for channel in CHANNELS:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reached.stub(channel).Generate(pb.GenerateRequest(request_id=script))
        unary.append((caught.value.code(), caught.value.details(), decode_error(caught.value).reason))
    assert unary[0] == unary[1]


@pytest.mark.parametrize(("seconds", "expected"), [(None, "no deadline"), (60.4, "60")])
async def test_handlers_know_the_deadline_and_callers_what_comes_before_the_answer(
    reached: Reached, seconds: float | None, expected: str
) -> None:
    for channel in CHANNELS:
        call = reached.stub(channel).Generate(pb.GenerateRequest(request_id="told"), timeout=seconds)
        assert (await call).choices[0].text == expected
        assert dict(await call.initial_metadata())["kolm-told"] == "before the answer"


async def test_a_method_that_no_servicer_has_is_unimplemented(reached: Reached) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await reached.server.channel.unary_unary("/a.B/C", bytes, bytes)(b"")
    assert decode_error(caught.value).reason == "UNIMPLEMENTED"


async def test_a_deadline_ends_the_handler(reached: Reached) -> None:
    ours, theirs = [await _failure(reached.stream("endless", channel, timeout=0.2)) for channel in CHANNELS]
    assert ours[1] is theirs[1] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await asyncio.to_thread(reached.servicer.closed.wait, 60)


async def test_a_deadline_that_passes_before_the_reader_has_all_messages_is_an_error(reached: Reached) -> None:
    stream = reached.stream("as many as are buffered", timeout=0.2)
    await _failure(reached.stream("endless", timeout=0.2))  # whose deadline is later
    assert (await _failure(stream))[1] is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("script", ["endless", "torrent"])
async def test_a_cancelled_stream_closes_the_servicers_generator(reached: Reached, script: str) -> None:
    stream = reached.stream(script)
    await stream.read()
    stream.cancel()
    assert await asyncio.to_thread(reached.servicer.closed.wait, 60)
    assert (await _failure(stream))[1] is grpc.StatusCode.CANCELLED


async def test_a_caller_that_is_cancelled_cancels_its_call(reached: Reached) -> None:
    runtime = AsyncRuntime(reached.server.address, channel=reached.server.channel)
    waiting = asyncio.ensure_future(runtime.serve({"request_id": "endless", "prompt": "a"}))
    assert await asyncio.to_thread(reached.servicer.begun.wait, 60)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await asyncio.to_thread(reached.servicer.closed.wait, 60)


async def test_a_caller_that_does_not_read_is_cut_off_and_told_so(
    reached: Reached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "STALLED_SECONDS", 0.2)
    stream = reached.stream("torrent")
    assert await asyncio.to_thread(reached.servicer.closed.wait, 60)
    messages, code, (_, _, reason) = await _failure(stream)
    assert (code, reason, len(messages)) == (grpc.StatusCode.ABORTED, "SLOW_READER", 16)


async def test_strangers_are_refused_and_calls_are_counted() -> None:
    async for reached in _reached(Access()):
        runtime = AsyncRuntime(reached.server.address, "kolm_x", channel=reached.server.channel)
        with pytest.raises(errors.Unauthenticated):
            await runtime.model_info()
        counted = {"service": SERVICE, "method": "GetModelInfo", "code": "UNAUTHENTICATED"}
        assert reached.registry.get_sample_value("kolm_rpc_calls_total", counted) == 1.0
