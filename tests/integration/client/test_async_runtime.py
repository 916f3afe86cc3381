"""AsyncRuntime over a real socket: what it asks again, and how its calls end early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from services.client import AsyncRuntime, Request
from services.client.errors import DeadlineExceeded
from services.client.errors import Unavailable as Away
from services.runtime.errors import Unavailable
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.serving import serving

PATIENCE = 60.0


class Shaky(ScriptedGeneration):
    """Away for so many calls."""

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
            with pytest.raises(Away, match="away for a moment"):
                await runtime.model_info()
    assert server.calls == calls


async def test_a_generation_is_asked_for_once_because_each_has_a_receipt(server: Shaky, address: str) -> None:
    server.away = 1
    async with AsyncRuntime.connect(address) as runtime:
        with pytest.raises(Away):
            await runtime.serve(Request(prompt="hello"))
        assert (server.calls, (await runtime.serve(Request(prompt="hello"))).finish_reason) == (1, "length")


@pytest.mark.parametrize("how", ["deadline", "cancelled task", "closed stream"])
async def test_a_call_that_ends_early_ends_on_the_server_too(server: Shaky, address: str, how: str) -> None:
    async with AsyncRuntime.connect(address) as runtime:
        if how == "deadline":
            with pytest.raises(DeadlineExceeded):
                await runtime.serve(Request(prompt="forever"), timeout=0.2)
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
