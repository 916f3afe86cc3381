"""Runtime and AsyncRuntime over a real socket: what they ask again, how their calls end early, and health."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from services.client.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    KolmError,
    ResourceExhausted,
    Unavailable,
)
from services.client.generation.completion import Finished, Started
from services.client.generation.request import Request
from services.client.generation.runtime import AsyncRuntime, Runtime
from services.client.health import main
from services.runtime.errors import Unavailable as ServerAway
from tests.integration.cli.scripted import ScriptedGeneration
from tests.integration.cli.scripted import mount as mount_generation
from tests.integration.runtime.scripted import SERVICE, ScriptedServicer, mount
from tests.serving import PATIENCE, serving


@pytest.fixture(scope="module")
def servicer() -> ScriptedServicer:
    return ScriptedServicer()


@pytest.fixture(scope="module")
def runtime(servicer: ScriptedServicer) -> Iterator[Runtime]:
    with serving(mount(servicer)) as served, Runtime.connect(served.address, wait=60) as runtime:
        yield runtime


def test_serve_returns_a_completion(runtime: Runtime) -> None:
    assert runtime.serve("hello").text == "5 characters"
    assert runtime.serve(Request(prompt="hello!")).receipt is None


def test_a_stream_is_started_chunks_finished(runtime: Runtime) -> None:
    with runtime.stream("hello") as events:
        first, last = list(events)
    assert isinstance(first, Started)
    assert isinstance(last, Finished)
    assert last.finish_reason == "stop"


def test_closing_a_stream_cancels_the_request_and_ends_the_iteration(
    runtime: Runtime, servicer: ScriptedServicer
) -> None:
    servicer.closed.clear()
    with runtime.stream(Request(prompt="x", request_id="endless")) as events:
        assert isinstance(next(events), Started)
    assert servicer.closed.wait(timeout=60)
    assert list(events) == []


def test_an_error_in_the_middle_of_a_stream_is_decoded(runtime: Runtime) -> None:
    with runtime.stream(Request(prompt="x", request_id="full")) as events:
        next(events)
        with pytest.raises(ResourceExhausted) as caught:
            next(events)
    assert caught.value.retry_after == 0.5


def test_an_error_has_its_fields_its_metadata_or_at_least_the_request_s_id(runtime: Runtime) -> None:
    found: dict[str, KolmError] = {}
    for script in ("bad field", "halted", "bug"):
        with pytest.raises(KolmError) as caught:
            runtime.serve(Request(prompt="x", request_id=script))
        found[script] = caught.value
    assert found["bad field"].fields == ("sampling.top_p",)
    assert (found["halted"].reason, found["halted"].metadata) == ("SPEC_DECODE_HALTED", {"halt_index": "7"})
    assert [type(error) for error in found.values()] == [InvalidArgument, FailedPrecondition, Internal]
    assert all(error.request_id and "secret" not in str(error) for error in found.values())


def test_a_deadline_ends_a_stream(runtime: Runtime) -> None:
    with (
        runtime.stream(Request(prompt="x", request_id="endless"), timeout=0.2) as events,
        pytest.raises(DeadlineExceeded),
    ):
        list(events)


class Shaky(ScriptedGeneration):
    """Unavailable for so many calls."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.calls = 0, 0

    def _come(self) -> None:
        self.calls += 1
        if self.calls <= self.away:
            raise ServerAway("away for a moment", retry_after=0.01)

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        self._come()
        return await super().GetModelInfo(request, context)

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        self._come()
        return await super().Generate(request, context)


@pytest.fixture
def server() -> Shaky:
    return Shaky()


@pytest.fixture
def address(server: Shaky) -> Iterator[str]:
    with serving(mount_generation(server)) as served:
        yield served.address


@pytest.mark.parametrize(("away", "calls"), [(2, 3), (9, 3)])
async def test_a_look_up_is_asked_again_a_limited_time(server: Shaky, address: str, away: int, calls: int) -> None:
    server.away = away
    async with AsyncRuntime.connect(address) as runtime:
        if away < calls:
            assert (await runtime.model_info()).model == "scripted"
        else:
            with pytest.raises(Unavailable):
                await runtime.model_info()
    assert server.calls == calls


async def test_a_generation_is_asked_for_once_because_each_has_a_receipt(server: Shaky, address: str) -> None:
    server.away = 1
    async with AsyncRuntime.connect(address) as runtime:
        with pytest.raises(Unavailable):
            await runtime.serve(Request(prompt="hello"))
        assert (server.calls, (await runtime.serve(Request(prompt="hello"))).finish_reason) == (1, "length")


@pytest.mark.parametrize("how", ["deadline", "cancelled task", "closed stream"])
async def test_a_call_that_ends_early_ends_on_the_server_too(server: Shaky, address: str, how: str) -> None:
    async with AsyncRuntime.connect(address) as runtime:
        if how == "deadline":
            seconds = 0.1
            while not server.running.is_set():  # until it is long enough for a busy server to begin
                seconds *= 2
                with pytest.raises(DeadlineExceeded):
                    await runtime.serve(Request(prompt="forever"), timeout=seconds)
        elif how == "cancelled task":
            task = asyncio.create_task(runtime.serve(Request(prompt="forever")))
            assert await asyncio.to_thread(server.running.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            async with runtime.stream(Request(prompt="go on")) as events:
                await anext(events)
                assert await asyncio.to_thread(server.running.wait, PATIENCE)
        assert await asyncio.to_thread(server.cancelled.wait, PATIENCE)


async def test_what_runtime_asks_it_asks_too(address: str) -> None:
    promises: list[bytes | None] = []
    with Runtime.connect(address) as blocking:
        expected = blocking.serve("hello", on_promise=promises.append).text, blocking.load()
    async with AsyncRuntime.connect(address) as runtime:
        await runtime.wait_ready(PATIENCE)
        assert (await runtime.serve("hello", on_promise=promises.append)).text == expected[0]
        assert await runtime.load() == expected[1]
    assert promises == [None, None]


async def test_a_missing_server_is_an_error_in_time() -> None:
    async with AsyncRuntime.connect("127.0.0.1:1") as runtime:
        with pytest.raises(Unavailable, check=lambda error: error.reason == "UNAVAILABLE"):
            await runtime.wait_ready(0.05)


def test_a_serving_server_is_0_a_draining_one_5_and_an_unknown_service_5(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(mount(ScriptedServicer())) as served:
        assert main([served.address]) == 0
        assert main([served.address, SERVICE]) == 0
        assert main([served.address, "kolm.no.such.Service"]) == 5
        served.on_loop(served.server.drain)
        assert main([served.address]) == 5
    assert f"{served.address} does not serve" in capsys.readouterr().err


def test_a_missing_server_is_5_and_no_address_is_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert main([f"127.0.0.1:{taken.getsockname()[1]}"]) == 5
    assert main(["http://host.without.port"]) == 5
    assert main([]) == 2
