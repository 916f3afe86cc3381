"""Adapters as callers see them: chosen per request, named in receipts, replayed with them, and refused by name."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from ledger.audit.log_verification import verify_receipt
from services.generation.serving import opened_servicer
from services.generation.target.adapters import adapter_cid
from services.runtime.process import CannotStart
from tests.fakes.tiny_head import make_tiny_adapter, make_tiny_adapters
from tests.integration.generation.deployment import Deployment, asking, failure
from tests.integration.generation.requests.test_replay import judged, receipts_of
from tests.mutations import replace

PROMPT = [70, 80, 90]


@pytest.fixture(scope="module")
def directories(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_tiny_adapters(tmp_path_factory.mktemp("adapters"), model, {"tone": {"rank": 8}, "wide": {"rank": 8}})


def flags(directories: dict[str, Path]) -> tuple[str, ...]:
    return tuple(f"{name}={path}" for name, path in directories.items())


@pytest.fixture
async def stub(deployment: Deployment, directories: dict[str, Path]) -> GenerationServiceStub:
    return await deployment.start_generation(adapter=flags(directories))


async def ask(stub: GenerationServiceStub, **members: object) -> pb.GenerateResponse:
    return await stub.Generate(asking("", token_ids=pb.TokenIds(ids=PROMPT), max_tokens=24, ignore_eos=True, **members))


async def test_requests_choose_their_adapter_by_name_or_identifier(
    deployment: Deployment, stub: GenerationServiceStub, directories: dict[str, Path]
) -> None:
    cids = {name: adapter_cid(path) for name, path in directories.items()}
    bare, tone, wide, by_cid = await asyncio.gather(
        ask(stub), ask(stub, adapter="tone"), ask(stub, adapter="wide"), ask(stub, adapter=cids["tone"])
    )
    tokens = [list(response.choices[0].token_ids) for response in (bare, tone, wide, by_cid)]
    assert tokens[1] == tokens[3]
    assert len({tuple(each) for each in tokens}) == 3
    assert not bare.resolved.HasField("adapter_cid")
    assert (tone.resolved.adapter_cid, wide.resolved.adapter_cid) == (cids["tone"], cids["wide"])
    receipts = [
        verify_receipt(response.choices[0].receipt.envelope, deployment.trust()) for response in (bare, tone, wide)
    ]
    assert [receipt.adapter_cid for receipt in receipts] == [None, cids["tone"], cids["wide"]]
    info = await stub.GetModelInfo(pb.GetModelInfoRequest())
    assert {adapter.name: adapter.adapter_cid for adapter in info.adapters} == cids


async def test_the_bare_base_is_the_one_of_a_server_without_adapters(
    deployment: Deployment, stub: GenerationServiceStub
) -> None:
    beside = await ask(stub)
    await deployment.stop_generation()
    alone = await ask(await deployment.start_generation())
    first, second = (verify_receipt(each.choices[0].receipt.envelope, deployment.trust()) for each in (beside, alone))
    assert first.output.stream_digest == second.output.stream_digest
    assert first.profile_cid == second.profile_cid


async def test_speculation_with_an_adapter_is_verified_inline_and_replays(
    deployment: Deployment, stub: GenerationServiceStub, directories: dict[str, Path]
) -> None:
    inline = speculation_pb2.VERIFY_MODE_INLINE
    response = await ask(stub, adapter="wide", method="lookahead", verify=inline, temperature=0.7, seed=5)
    receipt = verify_receipt(response.choices[0].receipt.envelope, deployment.trust())
    assert receipt.spec_decode.verified_identical_to_off is True
    ((_, content),) = receipts_of(response, deployment)
    kept = [(receipt, content), (replace(receipt, adapter_cid=None), content)]
    worn, bare = await judged(deployment, kept, adapters=directories)
    assert (worn.outcome, bare.outcome) == ("EXACT", "DEVIATION")


async def test_an_auditor_without_the_receipt_s_adapter_cannot_replay_it(
    deployment: Deployment, stub: GenerationServiceStub, directories: dict[str, Path]
) -> None:
    kept = receipts_of(await ask(stub, adapter="tone", temperature=1.0, seed=3), deployment)
    outcomes = [(await judged(deployment, kept, adapters=each))[0].outcome for each in (directories, {})]
    assert outcomes == ["EXACT", "UNREPLAYABLE"]


async def test_an_adapter_that_is_not_loaded_is_not_found_and_the_server_goes_on(
    stub: GenerationServiceStub, directories: dict[str, Path]
) -> None:
    refused = await failure(ask(stub, adapter="mine"))
    assert refused.code.name == "NOT_FOUND"
    assert "no adapter 'mine'; loaded are tone, wide" in refused.message
    assert (await ask(stub, adapter="tone")).choices


async def test_a_faulty_adapter_ends_the_start_with_one_line_that_names_it(
    deployment: Deployment, tmp_path: Path
) -> None:
    broken = make_tiny_adapter(tmp_path / "broken", deployment.model)
    weights = broken / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(CannotStart, match=r"--adapter: mine: .*adapter_model"):
        async with opened_servicer(deployment.settings(adapter=(f"mine={broken}",)), CollectorRegistry()):
            pass
