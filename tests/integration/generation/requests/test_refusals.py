"""Bad requests and too many of them: each a clear error, and a server that goes on."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from prometheus_client import CollectorRegistry

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.generation.serving import opened_servicer
from services.runtime.process import CannotStart
from tests.fakes.tampered_targets import GatedTarget
from tests.integration.generation.deployment import PATIENCE, Deployment, asking, failure
from tests.integration.http.front import fronting

NAN = float("nan")

WRONG = {
    "an empty prompt": (asking(""), "prompt"),
    "a prompt with no text": (pb.GenerateRequest(prompt=""), "prompt"),
    "a prompt of 5 MB": (asking("x" * 5_000_000), "prompt"),
    "a prompt that cannot fit by its bytes alone": (asking("x" * 200_000), "prompt"),
    "a prompt longer than the context": (asking("ledger " * 600), "prompt"),
    "no messages": (asking("", messages=pb.ChatMessages()), "messages"),
    "a role that the template does not know": (
        asking("", messages=pb.ChatMessages(messages=[pb.Message(role="wizard", content="x")])),
        "messages",
    ),
    "more messages than tokens fit": (asking("", messages=pb.ChatMessages(messages=[pb.Message()] * 600)), "messages"),
    "no token ids": (asking("", token_ids=pb.TokenIds()), "token_ids"),
    "a token id out of range": (asking("", token_ids=pb.TokenIds(ids=[5, 384])), "token_ids"),
    "prompt and output past the context": (asking(max_tokens=512), "sampling.max_tokens"),
    "no tokens": (asking(max_tokens=0), "sampling.max_tokens"),
    "more min than max tokens": (asking(max_tokens=4, min_tokens=5), "sampling.min_tokens"),
    "a NaN temperature": (asking(temperature=NAN), "sampling.temperature"),
    "a negative temperature": (asking(temperature=-0.1), "sampling.temperature"),
    "top_p of nothing": (asking(top_p=0.0), "sampling.top_p"),
    "top_k past the vocabulary": (asking(top_k=385), "sampling.top_k"),
    "a penalty past its range": (asking(frequency_penalty=2.5), "sampling.frequency_penalty"),
    "a repetition penalty past its range": (asking(repetition_penalty=11.0), "sampling.repetition_penalty"),
    "an empty stop string": (asking(stop=[""]), "sampling.stop"),
    "seventeen stop strings": (asking(stop=["x"] * 17), "sampling.stop"),
    "too many stop ids": (asking(stop_token_ids=range(65)), "sampling.stop_token_ids"),
    "too many biases": (asking(logit_bias=dict.fromkeys(range(301), 1.0)), "sampling.logit_bias"),
    "a bias that is infinite": (asking(logit_bias={1: float("inf")}), "sampling.logit_bias"),
    "no choices": (asking(n=0), "sampling.n"),
    "a hundred choices": (asking(n=100), "sampling.n"),
    "21 logprobs": (asking(logprobs=21), "sampling.logprobs"),
    "an unknown method": (asking(method="psychic"), "spec_decode.method"),
    "k of 0": (asking(k=0), "spec_decode.k"),
    "k of a million": (asking(k=10**6), "spec_decode.k"),
    "lossy acceptance": (asking(accept_threshold=0.1), "spec_decode.accept_threshold"),
    "NaN acceptance": (asking(accept_threshold=NAN), "spec_decode.accept_threshold"),
    "a head for another method": (asking(method="lookahead", eagle_head="h@sha256:ab"), "spec_decode.eagle_head"),
    "a head by no name": (asking(method="eagle3", eagle_head="my head"), "spec_decode.eagle_head"),
    "verification left unspecified on purpose": (asking(verify=0), "spec_decode.verify"),
    "verification by an unknown number": (asking(verify=7), "spec_decode.verify"),
    "an n-gram of one": (asking(method="lookahead", parameters={"ngram": 1}), "spec_decode.parameters.ngram"),
    "a window for off": (asking(method="off", parameters={"window": 1}), "spec_decode.parameters.window"),
    "a tree of no width": (asking(method="eagle3", parameters={"tree_width": 0}), "spec_decode.parameters.tree_width"),
    "a tree of a thousand tokens": (asking(parameters={"tree_tokens": 1000}), "spec_decode.parameters.tree_tokens"),
    "a tree for lookahead": (
        asking(method="lookahead", parameters={"tree_width": 2}),
        "spec_decode.parameters.tree_width",
    ),
    "a parameter of no method": (asking(parameters={"luck": 7}), "spec_decode.parameters.luck"),
    "an unknown workload": (asking(workload=99), "workload"),
    "a request id with a line break": (asking(request_id="a\nb"), "request_id"),
    "a long tenant": (asking(tenant="x" * 129), "tenant"),
    "a tenant with a control character": (asking(tenant="acme\x1b[2J"), "tenant"),
    "a tenant with a zero byte": (asking(tenant="acme\0"), "tenant"),
    "a tenant that turns text around": (asking(tenant="acme\u202e"), "tenant"),
}


TOO_LONG = (
    "a prompt that cannot fit by its bytes alone",
    "a prompt longer than the context",
    "more messages than tokens fit",
    "prompt and output past the context",
)


@pytest.fixture
async def stub(deployment: Deployment) -> GenerationServiceStub:
    return await deployment.start_generation()


async def test_every_bad_field_is_named_and_the_server_goes_on(stub: GenerationServiceStub) -> None:
    for what, (request, field) in WRONG.items():
        refused = await failure(stub.Generate(request), what)
        assert (refused.code.name, refused.fields) == ("INVALID_ARGUMENT", [field]), what
        reason = "LOSSY_ACCEPTANCE" if "threshold" in field else "INVALID_ARGUMENT"
        assert refused.reason == ("CONTEXT_LENGTH_EXCEEDED" if what in TOO_LONG else reason), what
        assert field in refused.message
    assert (await stub.Generate(asking(max_tokens=2))).choices
    assert "lookahead" in (await failure(stub.Generate(asking(method="psychic")))).message


async def test_a_truncated_model_file_ends_the_start_with_one_line(deployment: Deployment, tmp_path: Path) -> None:
    shutil.copytree(deployment.model, broken := tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(CannotStart, match=r"model\.safetensors"):
        async with opened_servicer(deployment.settings(model=broken), CollectorRegistry()):
            pass


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"context_length": 513}, "--context-length: 513 tokens; expected at least 32 and at most the model's own, 512"),
     ({"cache_bytes": 300_000}, "--cache-bytes: 300000 bytes cannot hold one sequence of 512 tokens")],
)  # fmt: skip
async def test_sizes_that_do_not_fit_the_model_end_the_start_by_their_flag(
    deployment: Deployment, changes: dict[str, int], words: str
) -> None:
    with pytest.raises(CannotStart) as caught:
        async with opened_servicer(deployment.settings(**changes), CollectorRegistry()):
            pass
    assert words in str(caught.value)


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
    quotas = ("one=requests:1", "few=tokens:100")
    stub, target = await deployment.start_wrapped(
        GatedTarget, max_sequences=1, max_waiting=2, quota=quotas, model_name="tiny"
    )
    target.close()
    yield Gated(deployment, stub, target)
    target.open()


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
