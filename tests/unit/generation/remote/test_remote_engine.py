"""The backend over another engine, without one."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from ledger.keys.ed25519 import SigningKey
from services.generation.engine.events import Event, Finished
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.text.tokenizer import TextCodec
from services.generation.remote.dialects import DIALECTS
from services.generation.remote.remote_engine import RemoteEngine
from services.generation.remote.upstream import Upstream, UpstreamDown
from services.generation.remote_preparation import ForeignEngine
from services.generation.settings import GenerationSettings


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


async def test_requests_share_one_look_at_an_engine_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, door = list[str](), asyncio.Event()

    async def ask(self: Upstream, path: str, body: Mapping[str, Any] | None) -> Any:
        looks.append(path)
        await door.wait()
        raise UpstreamDown("it does not answer")

    monkeypatch.setattr(Upstream, "ask", ask)
    settings = GenerationSettings(engine="vllm", plain_url="http://127.0.0.1:9", state_dir=tmp_path)
    engine = ForeignEngine(settings, tmp_path, SigningKey.generate("receipts"))
    engine.away("off")
    asked = [asyncio.create_task(engine.confirmed("off")) for _ in range(8)]
    await asyncio.sleep(0)
    asked.pop().cancel()  # its look goes on for the others
    door.set()
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert ({type(each) for each in answers}, looks) == ({UpstreamDown}, ["/version"])
    with pytest.raises(UpstreamDown):  # a request that comes later has its own
        await engine.confirmed("off")
    assert len(looks) == 2
