"""A loaded server: whose turn it is, what is refused, and whose time is over. One sequence at a time, pass by pass."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import openai
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from tests.fakes.tampered_targets import GatedTarget, Loader
from tests.integration.generation.deployment import PATIENCE, Deployment, asking, failure
from tests.integration.http.front import fronting

LONG = 400


@dataclass
class Gated:
    """A server of one place; two of each tenant may wait for it."""

    deployment: Deployment
    stub: Any
    target: GatedTarget

    async def taken(self, seconds: float = PATIENCE, **request: Any) -> Any:
        """A stream whose request the engine has queued. The engine looks for new ones between two passes."""
        call = self.stub.GenerateStream(pb.GenerateStreamRequest(request=asking(**request)), timeout=seconds)
        reading = asyncio.ensure_future(anext(aiter(call)))
        while not reading.done():
            self.target.let_pass()
            await asyncio.wait([reading], timeout=0.01)
        assert (await reading).HasField("started")
        return call

    def refused(self, reason: str) -> float | None:
        return self.deployment.metrics["generation"].get_sample_value("kolm_requests_refused_total", {"reason": reason})


@pytest.fixture
async def gated(deployment: Deployment) -> AsyncIterator[Gated]:
    loader = Loader(GatedTarget)
    quotas = ("one=requests:1", "few=tokens:100")
    stub = await deployment.start_generation(loader, max_sequences=1, max_waiting=2, quota=quotas, model_name="tiny")
    assert isinstance(loader.target, GatedTarget)
    loader.target.close()
    yield Gated(deployment, stub, loader.target)
    loader.target.open()


async def test_a_tenant_with_a_full_queue_is_refused_and_does_not_hold_up_another(gated: Gated) -> None:
    first = await gated.taken(tenant="a", max_tokens=LONG, ignore_eos=True)
    waiting = [
        await gated.taken(tenant="a", max_tokens=4, request_id="second"),
        await gated.taken(tenant="a", max_tokens=4, request_id="urgent", priority=-1),
    ]
    refused = await failure(gated.taken(tenant="a", max_tokens=4))
    assert (refused.code.name, refused.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
    assert refused.retry_seconds > 0
    assert gated.refused("queue_full") == 1
    waiting.append(await gated.taken(tenant="b", max_tokens=4, request_id="other"))
    first.cancel()
    gated.target.open()
    for call in waiting:
        assert [event async for event in call][-1].HasField("finished")
    receipts = await gated.deployment.receipts(4)
    assert [receipt.request_id for receipt in receipts[1:]] == ["other", "urgent", "second"]
    assert len({receipt.output.stream_digest for receipt in receipts[1:]}) == 1  # nor does its turn change a token


async def test_a_deadline_that_passes_in_the_queue_ends_the_call_without_a_pass(gated: Gated) -> None:
    running = await gated.taken(max_tokens=LONG, ignore_eos=True, request_id="running")
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await _read(await gated.taken(seconds=2.0, max_tokens=4, request_id="late"))
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    gated.target.open()
    await _read(running)
    receipts = {receipt.request_id: receipt for receipt in await gated.deployment.receipts(2)}
    of_late = receipts["late"]
    assert (of_late.output.finish_reason, of_late.output.tokens) == ("cancelled", 0)
    assert of_late.spec_decode.target_passes == 0
    assert receipts["running"].output.tokens == LONG


async def test_a_tenant_is_held_to_its_quota_by_grpc_and_by_http(gated: Gated) -> None:
    running = await gated.taken(tenant="one", max_tokens=LONG, ignore_eos=True)
    refused = await failure(gated.stub.Generate(asking(tenant="one")))
    assert (refused.code.name, refused.reason) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
    assert (refused.metadata["quota"], refused.retry_seconds) == ("requests", 1.0)
    spending = await gated.taken(tenant="few", max_tokens=90)
    assert (await failure(gated.stub.Generate(asking(tenant="few")))).metadata["quota"] == "tokens"
    async with fronting(gated.deployment.generation_address) as front:
        with pytest.raises(openai.RateLimitError) as caught:
            await front.client.completions.create(model="tiny", prompt="x", extra_body={"kolm": {"tenant": "one"}})
    assert caught.value.code == "quota_exceeded"
    assert caught.value.response.headers["retry-after"] == "1"
    assert gated.refused("quota_requests") == 2
    gated.target.open()
    await _read(running)
    await _read(spending)
    assert (await gated.stub.Generate(asking(tenant="one", max_tokens=2))).choices


async def _read(call: Any) -> None:
    async for _ in call:
        pass
