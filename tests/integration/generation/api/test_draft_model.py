"""A draft model as callers see it: draft by name, the same tokens as without, whatever its tokenizer."""

from __future__ import annotations

from pathlib import Path

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.target.identity import tokenizer_cid
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment, asking, failure


async def test_draft_serves_the_tokens_of_off(deployment: Deployment, tmp_path: Path) -> None:
    small = make_tiny_model(tmp_path / "small", layers=1, seed=1)
    stub = await deployment.start_generation(draft_model=small)
    assert "draft" in (await stub.GetModelInfo(pb.GetModelInfoRequest())).methods
    response = await stub.Generate(asking(method="draft", verify="VERIFY_MODE_INLINE", max_tokens=30, ignore_eos=True))
    assert (response.metrics.method, response.metrics.fallback_reason) == ("draft", "")
    (receipt,) = await deployment.receipts(1)
    block = receipt.spec_decode
    assert (block.method, block.k, block.verified_identical_to_off) == ("draft", 8, True)


async def test_without_a_draft_model_the_method_is_refused(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    assert "draft" not in (await stub.GetModelInfo(pb.GetModelInfoRequest())).methods
    assert (await failure(stub.Generate(asking(method="draft", max_tokens=4)))).reason == "METHOD_NOT_LOADED"


async def test_a_draft_model_with_another_tokenizer_serves_the_tokens_of_off(
    deployment: Deployment, tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path / "other", vocab=300, layers=1)
    assert tokenizer_cid(other) != tokenizer_cid(deployment.model)
    stub = await deployment.start_generation(draft_model=other)
    response = await stub.Generate(asking(method="draft", verify="VERIFY_MODE_INLINE", max_tokens=30, ignore_eos=True))
    assert response.metrics.method == "draft"
    (receipt,) = await deployment.receipts(1)
    assert receipt.spec_decode.verified_identical_to_off
