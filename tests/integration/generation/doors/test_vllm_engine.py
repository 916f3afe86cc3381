"""The generation server as a worker of vLLM's routers, by the stubs of smg-grpc-proto."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub
from transformers import AutoTokenizer

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from tests.fakes.tampered_targets import GatedTarget, Loader
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {
    "type": "object",
    "properties": {"kept": {"enum": ["yes", "no"]}},
    "required": ["kept"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def loader() -> Loader:
    return Loader(GatedTarget)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory, loader: Loader) -> AsyncIterator[Deployment]:
    model: Path = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    deployment = Deployment(tmp_path_factory.mktemp("deployment"), model)
    await deployment.start_ledger()
    await deployment.start_generation(loader, model_name="tiny", vllm_engine=True, max_sequences=8)
    yield deployment
    await deployment.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def router(deployment: Deployment) -> VllmEngineStub:
    return VllmEngineStub(await deployment.channel(deployment.generation_address))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(deployment: Deployment) -> GenerationServiceStub:
    return GenerationServiceStub(await deployment.channel(deployment.generation_address))


def asking(
    request_id: str, stream: bool = False, text: str = "The ledger keeps", **sampling: Any
) -> vllm.GenerateRequest:
    params = vllm.SamplingParams(**{"temperature": 0.0, "max_tokens": 24} | sampling)
    return vllm.GenerateRequest(request_id=request_id, text=text, sampling_params=params, stream=stream)


async def answered(router: VllmEngineStub, request: vllm.GenerateRequest) -> list[vllm.GenerateResponse]:
    return [each async for each in router.Generate(request)]


async def test_its_tokens_are_those_of_the_generation_service_with_a_receipt(
    router: VllmEngineStub, ours: GenerationServiceStub, deployment: Deployment
) -> None:
    same = pb.GenerateRequest(prompt="The ledger keeps")
    same.sampling.max_tokens = 24
    expected = (await ours.Generate(same)).choices[0]
    (whole,) = await answered(router, asking("whole"))
    assert list(whole.complete.output_ids) == list(expected.token_ids)
    assert (whole.complete.finish_reason, whole.complete.completion_tokens) == ("length", 24)
    *chunks, last = await answered(router, asking("streamed", stream=True))
    assert [token for each in chunks for token in each.chunk.token_ids] == list(expected.token_ids)
    assert list(last.complete.output_ids) == list(expected.token_ids)
    ids = (await ours.Tokenize(pb.TokenizeRequest(prompt="The ledger keeps"))).token_ids
    tokenized = asking("ids", text="")
    tokenized.tokenized.input_ids.extend(ids)
    (by_ids,) = await answered(router, tokenized)
    assert list(by_ids.complete.output_ids) == list(expected.token_ids)
    names = {receipt.request_id for receipt in await deployment.receipts(4)}
    assert {"whole", "streamed", "ids"} <= names


async def test_choices_logprobs_stops_and_grammars_pass_through(router: VllmEngineStub) -> None:
    two = await answered(router, asking("two", temperature=1.0, seed=5, n=2, logprobs=2))
    assert sorted(each.complete.index for each in two) == [0, 1]
    for each in two:
        told = each.complete.output_logprobs
        assert list(told.token_ids) == list(each.complete.output_ids)
        assert all(len(position.values) == 2 for position in told.top_logprobs)
    first = two[0].complete.output_ids[0]
    (stopped,) = await answered(
        router, asking("stopped", temperature=1.0, seed=5, stop_token_ids=[first, two[1].complete.output_ids[0]])
    )
    assert stopped.complete.finish_reason == "stop"
    assert stopped.complete.matched_token_id == stopped.complete.output_ids[-1]
    (held,) = await answered(router, asking("held", max_tokens=60, json_schema=json.dumps(SCHEMA)))
    assert held.complete.finish_reason == "stop"


async def test_without_a_limit_the_context_is_one(router: VllmEngineStub) -> None:
    request = asking("unlimited", ignore_eos=True)
    request.sampling_params.ClearField("max_tokens")
    (whole,) = await answered(router, request)
    assert whole.complete.prompt_tokens + whole.complete.completion_tokens == 512
    assert whole.complete.finish_reason == "length"


async def test_a_request_is_aborted_by_its_id(router: VllmEngineStub, loader: Loader, deployment: Deployment) -> None:
    assert isinstance(loader.target, GatedTarget)
    loader.target.close()
    running = asyncio.ensure_future(answered(router, asking("long", stream=True, n=2)))
    while not loader.target.stopped.is_set():
        await router.Abort(vllm.AbortRequest(request_ids=["another"]))
    await router.Abort(vllm.AbortRequest(request_ids=["another", "long"]))
    *_, first, second = await running
    loader.target.open()
    assert [first.complete.finish_reason, second.complete.finish_reason] == ["abort", "abort"]
    assert (await deployment.receipt_of("long")).output.finish_reason == "cancelled"


async def test_a_call_that_its_router_ends_is_computed_no_further(
    router: VllmEngineStub, loader: Loader, deployment: Deployment
) -> None:
    assert isinstance(loader.target, GatedTarget)
    loader.target.close()
    loader.target.stopped.clear()
    call = router.Generate(asking("left", stream=True))
    reading = asyncio.ensure_future(call.read())
    await asyncio.to_thread(loader.target.stopped.wait, 60)
    call.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    loader.target.open()
    assert (await deployment.receipt_of("left")).output.finish_reason == "cancelled"


async def test_a_router_learns_of_model_server_and_loads(router: VllmEngineStub) -> None:
    assert (await router.HealthCheck(vllm.HealthCheckRequest())).healthy
    model = await router.GetModelInfo(vllm.GetModelInfoRequest())
    assert (model.served_model_name, model.max_context_length, model.vocab_size) == ("tiny", 512, 384)
    assert model.is_generation
    assert len(model.eos_token_ids) == 1
    server = await router.GetServerInfo(vllm.GetServerInfoRequest())
    assert (server.server_type, server.max_num_seqs, server.active_requests) == ("vllm-grpc", 8, 0)
    (load,) = (await router.GetLoads(vllm.GetLoadsRequest())).loads
    assert (load.num_running_reqs, load.num_waiting_reqs, load.max_running_requests) == (0, 0, 8)


async def test_the_tokenizer_comes_as_an_archive_that_transformers_reads(
    router: VllmEngineStub, ours: GenerationServiceStub, tmp_path: Path
) -> None:
    chunks = [each async for each in router.GetTokenizer(common.GetTokenizerRequest())]
    data = b"".join(each.data for each in chunks)
    assert [each.sha256 for each in chunks] == [*[""] * (len(chunks) - 1), hashlib.sha256(data).hexdigest()]
    zipfile.ZipFile(io.BytesIO(data)).extractall(tmp_path)
    read = await asyncio.to_thread(AutoTokenizer.from_pretrained, tmp_path)
    turns = [{"role": "user", "content": "Who signs?"}]
    asked = pb.TokenizeRequest(messages=pb.ChatMessages(messages=[pb.Message(**turn) for turn in turns]))
    text = read.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert read(text, add_special_tokens=False).input_ids == list((await ours.Tokenize(asked)).token_ids)


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        ({"prompt_logprobs": 1}, grpc.StatusCode.INVALID_ARGUMENT, "sampling_params.prompt_logprobs"),
        ({"structural_tag": "{}"}, grpc.StatusCode.INVALID_ARGUMENT, "sampling_params.structural_tag"),
        ({"logprobs": -1}, grpc.StatusCode.INVALID_ARGUMENT, "sampling_params.logprobs"),
        ({"n": 2**32 - 1}, grpc.StatusCode.INVALID_ARGUMENT, "n"),
        ({"top_p": 2.0}, grpc.StatusCode.INVALID_ARGUMENT, "top_p"),
        ({"json_schema": "{"}, grpc.StatusCode.INVALID_ARGUMENT, "structured_outputs.json"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_name(
    router: VllmEngineStub, change: dict[str, Any], code: grpc.StatusCode, named: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await answered(router, asking("refused", **change))
    assert refused.value.code() == code
    assert named in (refused.value.details() or "")


async def test_what_is_not_there_is_unimplemented(router: VllmEngineStub) -> None:
    for call in (router.Embed(vllm.EmbedRequest()), router.FlushCache(common.FlushCacheRequest())):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED)
