"""Limits of a real server: calls, large and compressed messages, connections, requests that never end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from kolm.generation.v1.sampling_pb2 import SamplingParams
from services.client.errors import DeadlineExceeded, InvalidArgument, KolmError, ResourceExhausted, decoded_errors
from services.runtime.limits import Limits
from tests.integration.runtime.scripted import SERVICE, ScriptedServicer, mount
from tests.serving import Served, serving

LIMITS = Limits(message_bytes=300_000, calls=3, calls_of_caller=3)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(mount(ScriptedServicer()), limits=LIMITS) as running:
        yield running


def _channel(served: Served, **options: int) -> grpc.Channel:
    named = [(f"grpc.{name}", value) for name, value in options.items()]
    return grpc.insecure_channel(served.address, options=[("grpc.use_local_subchannel_pool", 1), *named])


def test_a_call_too_many_is_told_to_come_back(served: Served) -> None:
    request = pb.GenerateStreamRequest(request=pb.GenerateRequest(request_id="endless"))
    with ExitStack() as stack:
        channels = [stack.enter_context(_channel(served)) for _ in range(2)]
        endless = [GenerationServiceStub(channels[0]).GenerateStream(request) for _ in range(3)]
        assert all(next(stream).HasField("started") for stream in endless)
        with pytest.raises(ResourceExhausted) as caught, decoded_errors():
            GenerationServiceStub(channels[1]).Generate(pb.GenerateRequest())
        assert (caught.value.reason, caught.value.retry_after) == ("TOO_MANY_CALLS", 1.0)


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        (290_000, {}, None),
        (310_000, {}, ResourceExhausted),
        (290_000, {"default_compression_algorithm": 2}, KolmError),
    ],
    ids=["largest", "too large", "compressed"],
)
def test_messages_are_bounded_and_come_as_they_are(
    served: Served, size: int, options: dict[str, int], expected: type[KolmError] | None
) -> None:
    with _channel(served, **options) as channel:
        stub = GenerationServiceStub(channel)
        if expected is None:
            assert stub.Generate(pb.GenerateRequest(prompt="x" * size)).choices
        else:
            with pytest.raises(expected), decoded_errors():
                stub.Generate(pb.GenerateRequest(prompt="x" * size))


def test_a_large_request_of_two_bytes_a_part_is_refused_before_anything_looks_at_its_parts(served: Served) -> None:
    """Each of them would take a thousand times as much where it is answered."""
    many = pb.ChatMessages(messages=[pb.Message()] * 40_000)
    deep = pb.ChatMessages(messages=[pb.Message(tool_calls=[pb.ToolCall()] * 40_000)])
    texts, biases = SamplingParams(stop=[""] * 40_000), SamplingParams(logit_bias=dict.fromkeys(range(17_000), 1.0))
    few = pb.ChatMessages(messages=[pb.Message(content="x" * 800)] * 100)
    with _channel(served) as channel:
        stub = GenerationServiceStub(channel)
        for request in (
            *(pb.GenerateRequest(messages=messages) for messages in (many, deep)),
            *(pb.GenerateRequest(sampling=sampling) for sampling in (texts, biases)),
        ):
            with pytest.raises(InvalidArgument, match="at most 16384 messages") as caught, decoded_errors():
                stub.Generate(request)
            assert caught.value.reason == "TOO_MANY_PARTS"
        assert stub.Generate(pb.GenerateRequest(messages=few)).choices


def test_what_anybody_may_ask_is_short(served: Served) -> None:
    with _channel(served) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(InvalidArgument, match="takes 65536") as caught, decoded_errors():
            check(HealthCheckRequest(service="x" * 70_000).SerializeToString())
        assert caught.value.reason == "REQUEST_TOO_LARGE"


def test_a_unary_call_without_a_request_is_refused_and_one_that_holds_it_back_is_not_waited_for() -> None:
    ended = threading.Event()
    hasty = Limits(reading_seconds=0.2)

    def held_back() -> Iterator[bytes]:
        ended.wait(60)
        yield b""

    with serving(mount(ScriptedServicer()), limits=hasty) as served, _channel(served) as channel:
        call = channel.stream_unary(f"/{SERVICE}/Generate")
        with pytest.raises(InvalidArgument, match="expected a message"), decoded_errors():
            call(iter([]), timeout=60)
        with pytest.raises(DeadlineExceeded) as caught, decoded_errors():
            call(held_back(), timeout=60)
        ended.set()
        assert caught.value.reason == "REQUEST_TOO_SLOW"


def test_an_old_connection_ends_its_calls_and_takes_no_more() -> None:
    request = pb.GenerateStreamRequest(request=pb.GenerateRequest(request_id="endless"))
    left, seen = threading.Event(), list[grpc.ChannelConnectivity]()

    def watch(state: grpc.ChannelConnectivity) -> None:
        if grpc.ChannelConnectivity.READY in seen and state is not grpc.ChannelConnectivity.READY:
            left.set()
        seen.append(state)

    with serving(mount(ScriptedServicer()), limits=Limits(age_seconds=0.2)) as aging, _channel(aging) as channel:
        channel.subscribe(watch, try_to_connect=True)
        stub = GenerationServiceStub(channel)
        running = stub.GenerateStream(request)
        assert next(running).HasField("started")
        assert left.wait(60), seen
        assert running.is_active()
        assert stub.Generate(pb.GenerateRequest(prompt="x"), timeout=60).choices
        running.cancel()
