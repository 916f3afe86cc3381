"""A machine whose probe failed: an honest server is not convicted of what the machine does to rows in one pass."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from ledger.audit.log_verification import verify_receipt
from tests.fakes.tampered_targets import Loader, UnprovableTarget
from tests.integration.generation.deployment import Deployment, asking
from tests.integration.generation.requests.test_replay import judged, receipts_of

PROMPTS = [[70 + number, *range(30, 60 + 20 * number)] for number in range(6)]


async def served(stub: GenerationServiceStub) -> list[pb.GenerateResponse]:
    """Six requests at once: greedy, sampled, and of two choices; each tries to speculate."""
    asked = [
        asking("", token_ids=pb.TokenIds(ids=prompt), max_tokens=24, temperature=0.4 * (number % 3), seed=number,
               n=1 + number % 2, tenant="acme", workload="WORKLOAD_CODE")
        for number, prompt in enumerate(PROMPTS)
    ]  # fmt: skip
    return await asyncio.gather(*(stub.Generate(request) for request in asked))


async def test_six_requests_at_once_give_receipts_whose_replays_are_all_exact(deployment: Deployment) -> None:
    loader = Loader(UnprovableTarget)
    stub = await deployment.start_generation(loader)
    assert isinstance(loader.target, UnprovableTarget)
    loader.target.widths.clear()
    responses = await served(stub)
    kept = [each for response in responses for each in receipts_of(response, deployment)]
    findings = await judged(deployment, kept)
    assert [finding.outcome for finding in findings] == ["EXACT"] * 9
    assert set(loader.target.widths) == {1}
    again = await served(stub)
    assert [response.usage.cached_prompt_tokens for response in (*responses, *again)] == [0] * 12


async def test_receipts_and_answers_say_whether_the_profile_is_proven(deployment: Deployment) -> None:
    for loader, proven in ((None, True), (Loader(UnprovableTarget), False)):
        stub = await (deployment.start_generation() if loader is None else deployment.start_generation(loader))
        response = await stub.Generate(asking(max_tokens=3, workload="WORKLOAD_CODE"))
        receipt = verify_receipt(response.choices[0].receipt.envelope, deployment.trust())
        assert receipt.profile_proven is proven
        assert response.resolved.HasField("profile_proven")
        assert response.resolved.profile_proven is proven
        assert receipt.spec_decode.fallback_reason == (None if proven else "profile_unproven")
        await deployment.stop_generation()


async def test_the_log_says_at_start_how_an_unproven_profile_is_served(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    await deployment.start_generation(Loader(UnprovableTarget))
    said = [record for record in caplog.records if "failed its probe" in record.getMessage()]
    assert [(record.levelno, record.name) for record in said] == [(logging.ERROR, "services.generation.preparation")]
    assert "one sequence at a time, one row a pass, speculation off" in said[0].getMessage()
