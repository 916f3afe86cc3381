"""AsyncRuntime over a real socket: what it asks again, and how its calls end early."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from services.client import AsyncRuntime, Request, Runtime
from services.client.errors import DeadlineExceeded
from services.client.errors import Unavailable as Unreachable
from services.runtime.errors import Unavailable
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.serving import serving

PATIENCE = 240.0


class Shaky(ScriptedGeneration):
    """Unreachable for so many calls."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.calls = 0, 0

    def _come(self) -> None:
        self.calls += 1
        if self.calls <= self.away:
            raise Unavailable("away for a moment", retry_after=0.01)

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
    with serving(mount(server)) as served:
        yield served.address


@pytest.mark.parametrize(("away", "calls"), [(2, 3), (9, 3)])
async def test_a_look_up_is_asked_again_and_not_for_ever(server: Shaky, address: str, away: int, calls: int) -> None:
    server.away = away
    async with AsyncRuntime.connect(address) as runtime:
        if away < calls:
            assert (await runtime.model_info()).model == "scripted"
        else:
            with pytest.raises(Unreachable, match="away for a moment"):
                await runtime.model_info()
    assert server.calls == calls


async def test_a_generation_is_asked_for_once_because_each_has_a_receipt(server: Shaky, address: str) -> None:
    server.away = 1
    async with AsyncRuntime.connect(address) as runtime:
        with pytest.raises(Unreachable):
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


async def test_nobody_there_is_said_in_time() -> None:
    async with AsyncRuntime.connect("127.0.0.1:1") as runtime:
        with pytest.raises(Unreachable, match="no server at"):
            await runtime.wait_ready(0.05)


def test_its_names_and_parameters_are_those_of_runtime() -> None:
    for name in (each for each in vars(Runtime) if not each.startswith("_")):
        ours, theirs = inspect.signature(getattr(AsyncRuntime, name)), inspect.signature(getattr(Runtime, name))
        assert [each for each in theirs.parameters if each != "wait"] == [*ours.parameters], name
