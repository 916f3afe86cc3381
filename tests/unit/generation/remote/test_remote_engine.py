"""The backend over another engine, without one."""

import asyncio
from typing import cast

from services.generation.engine.events import Event, Finished
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import TextCodec
from services.generation.remote.dialects import DIALECTS
from services.generation.remote.remote_engine import RemoteEngine
from services.generation.remote.upstream import Upstream


async def test_a_sequence_that_is_cancelled_before_its_first_step_ends() -> None:
    async def confirmed(method: str) -> str:
        await asyncio.Event().wait()
        return method

    engine = RemoteEngine(
        DIALECTS["vllm"], {"off": cast(Upstream, None)}, "model", cast(TextCodec, None), adapters={}, most=1,
        vocabulary=9, ends=frozenset(), reuse=False, confirmed=confirmed,
    )  # fmt: skip
    events: list[Event] = []
    request = EngineRequest("left", (5,), SamplingParams())
    submitting = asyncio.create_task(engine.submit_all((request,), events.append))
    asyncio.get_running_loop().call_soon(engine.cancel, "left")
    async with asyncio.timeout(10):
        await submitting
    (event,) = events
    assert isinstance(event, Finished)
    assert event.outcome.finish_reason == "cancelled"
