"""Method auto as callers see it: receipts say which methods drafted, GetModelInfo which there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from services.client.generation import completion_wire
from services.generation.engine import speculation
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment, asking


async def test_a_request_that_hands_over_says_so(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "_TOLERATED", -100.0)  # nothing ever pays
    stub = await deployment.start_generation(draft_model=make_tiny_model(tmp_path / "small", layers=1, seed=1))
    response = await stub.Generate(asking(verify="VERIFY_MODE_INLINE", max_tokens=80, ignore_eos=True))
    metrics = response.metrics
    assert (metrics.requested_method, metrics.method, metrics.fallback_reason) == ("auto", "lookahead", "no_head")
    assert sum(metrics.passes_by_method.values()) == metrics.target_passes
    assert metrics.passes_by_method["off"] >= 16
    (receipt,) = await deployment.receipts(1)
    assert dict(receipt.spec_decode.passes_by_method) == dict(metrics.passes_by_method)
    assert receipt.spec_decode.verified_identical_to_off is True


async def test_a_declared_workload_begins_with_its_method(deployment: Deployment, tmp_path: Path) -> None:
    stub = await deployment.start_generation(draft_model=make_tiny_model(tmp_path / "small", layers=1, seed=1))
    await stub.Generate(asking(workload=speculation_pb2.WORKLOAD_CODE, max_tokens=40, ignore_eos=True))
    (receipt,) = await deployment.receipts(1)
    assert (receipt.spec_decode.method, receipt.spec_decode.fallback_reason) == ("lookahead", None)


async def test_the_server_lists_its_methods_with_their_parameters(deployment: Deployment, tmp_path: Path) -> None:
    stub = await deployment.start_generation(draft_model=make_tiny_model(tmp_path / "small", layers=1, seed=1))
    info = completion_wire.model_info(await stub.GetModelInfo(pb.GetModelInfoRequest()))
    assert info.methods == ("off", "lookahead", "draft", "suffix")
    assert [method.name for method in info.draft_methods] == ["lookahead", "draft", "suffix"]
    window = info.draft_methods[0].parameters[0]
    assert (window.name, window.least, window.most) == ("window", 0, 32)
