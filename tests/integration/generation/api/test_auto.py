"""Method auto as callers see it: undeclared requests move to what pays, receipts and GetModelInfo say how."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import speculation_pb2
from services.client import completion_wire
from services.generation import model
from services.generation.drafting.auto import bandit
from services.generation.target.target import Target
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment, asking


async def test_an_undeclared_request_moves_and_says_so(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandit, "_TRY", 0.5)
    monkeypatch.setattr(bandit, "_SETTLED", 2)
    stub = await deployment.start_generation(draft_model=make_tiny_model(tmp_path / "small", layers=1, seed=1))
    assert not (await stub.GetModelInfo(pb.GetModelInfoRequest())).method_records
    response = await stub.Generate(asking(verify="VERIFY_MODE_INLINE", max_tokens=80, ignore_eos=True))
    metrics = response.metrics
    assert (metrics.requested_method, metrics.method, metrics.fallback_reason) == ("auto", "lookahead", "no_head")
    assert sum(metrics.passes_by_method.values()) == metrics.target_passes
    (receipt,) = await deployment.receipts(1)
    assert dict(receipt.spec_decode.passes_by_method) == dict(metrics.passes_by_method)
    assert receipt.spec_decode.verified_identical_to_off is True
    info = completion_wire.model_info(await stub.GetModelInfo(pb.GetModelInfoRequest()))
    assert {(record.method, record.k) for record in info.method_records} >= {("draft", None), ("lookahead", None)}
    assert all(not record.sampled and record.adapter_cid is None for record in info.method_records)
    assert {record.resembles for record in info.method_records} == {"other"}
    assert all(record.expected_gain > 0 for record in info.method_records)
    used = [record for record in info.method_records if record.passes]
    assert used
    assert all(record.seconds > 0 and record.gain > 0 for record in used)
    assert [r.expected_gain for r in info.method_records] == sorted(
        (r.expected_gain for r in info.method_records), reverse=True
    )
    (plain,) = (record for record in info.method_records if record.method == "off")
    assert (plain.expected_gain, plain.expected_gain_error, plain.comparisons) == (1.0, 0.0, 0.0)


async def test_methods_are_compared_that_were_never_used(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passes(target: Target) -> list[tuple[int, float]]:
        """As of models of some size, where a step of the small one is worth asking for."""
        return [(rows, (0.01 if target.config.layers > 1 else 0.0005) * (1 + rows / 50)) for rows in (1, 8, 32)]

    monkeypatch.setattr(model, "time_passes", passes)
    stub = await deployment.start_generation(draft_model=make_tiny_model(tmp_path / "small", layers=1, seed=1))
    for _ in range(3):  # in the first one a drafter's first draft does not count
        await stub.Generate(asking(max_tokens=60, ignore_eos=True))
    records = (await stub.GetModelInfo(pb.GetModelInfoRequest())).method_records
    compared = {record.method: record.comparisons for record in records}
    assert compared["draft"] == compared["lookahead"] > 0.5


async def test_what_was_learned_outlives_a_restart(deployment: Deployment, tmp_path: Path) -> None:
    small = make_tiny_model(tmp_path / "small", layers=1, seed=1)
    stub = await deployment.start_generation(draft_model=small)
    await stub.Generate(asking(max_tokens=40, ignore_eos=True))
    before = (await stub.GetModelInfo(pb.GetModelInfoRequest())).method_records
    await deployment.stop_generation()
    stub = await deployment.start_generation(draft_model=small)
    assert before
    assert (await stub.GetModelInfo(pb.GetModelInfoRequest())).method_records == before


async def test_a_declared_workload_keeps_the_method_of_the_table(deployment: Deployment, tmp_path: Path) -> None:
    stub = await deployment.start_generation(draft_model=make_tiny_model(tmp_path / "small", layers=1, seed=1))
    await stub.Generate(asking(workload=speculation_pb2.WORKLOAD_CODE, max_tokens=40, ignore_eos=True))
    (receipt,) = await deployment.receipts(1)
    assert receipt.spec_decode.method == "lookahead"
    assert receipt.spec_decode.passes_by_method == ()
    assert not (await stub.GetModelInfo(pb.GetModelInfoRequest())).method_records
