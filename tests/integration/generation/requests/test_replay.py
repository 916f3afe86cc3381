"""Replays of served requests on an auditor's own engine: the same profile, speculation off."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from ledger.audit.log_verification import verify_receipt
from ledger.documents.audit import DECODE, PREFILL
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.encoding.text_forms import cid_of_json
from services.auditor.audit_error import CannotReplay
from services.auditor.examination import EnginePlan, Finding, Judge
from services.auditor.own_engine import OwnEngine
from services.generation.engine.core import EngineCore
from services.generation.engine.events import Sink
from services.generation.engine.request import EngineRequest
from tests.integration.generation.deployment import Deployment, asking
from tests.mutations import replace

OLD_PROFILE = cid_of_json(
    {
        "type": "kolm.profile.v1",
        "device": "cpu",
        "instruction_set": "AVX512",
        "dtype": "float32",
        "libraries": {"numpy": "2.4.6", "torch": "2.13.0"},
        "kernels": {"linear": "onednn-packed/1"},
        "fingerprint": "sha256:" + 64 * "1",
    }
)
"""The request of a receipt that was made before the arithmetic was kolm's own."""


def content_of(response: pb.GenerateResponse, choice: pb.Choice) -> Content:
    """The content of a choice whose caller has it from the answer."""
    resolved = response.resolved
    return Content(
        resolved.prompt_salt, tuple(resolved.prompt_token_ids), choice.receipt.output_salt, tuple(choice.token_ids)
    )


def receipts_of(response: pb.GenerateResponse, deployment: Deployment) -> list[tuple[Receipt, Content]]:
    return [
        (verify_receipt(choice.receipt.envelope, deployment.trust()), content_of(response, choice))
        for choice in response.choices
    ]


async def judged(deployment: Deployment, kept: Sequence[tuple[Receipt, Content]], **options: Any) -> list[Finding]:
    """An auditor's findings, decoded token by token on weights of its own."""

    def judge() -> list[Finding]:
        own = OwnEngine.load(EnginePlan(deployment.model, **options), threading.Event())
        return [Judge(own, 1.0).judge(receipt, content) for receipt, content in kept]

    return await asyncio.to_thread(judge)


async def test_a_replay_reproduces_tokens_digest_and_margins_of_each_choice(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    asked = asking("", token_ids=pb.TokenIds(ids=[70, 80, 90]), max_tokens=40, n=2, temperature=0.8, seed=2**60)
    kept = receipts_of(await stub.Generate(asked), deployment)
    own = await asyncio.to_thread(OwnEngine.load, EnginePlan(deployment.model), threading.Event())
    for receipt, content in kept:
        for way in (PREFILL, DECODE):
            replay = await asyncio.to_thread(own.replay, receipt, content, way)
            assert replay.token_ids == content.output_token_ids
            assert replay.stream_digest == receipt.output.stream_digest
            assert replay.profile_cid == receipt.profile_cid
            assert min(replay.margins) == receipt.output.min_margin


async def test_replays_begin_with_nothing_that_others_have_computed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[EngineRequest] = []
    add_all = EngineCore.add_all

    def noted(core: EngineCore, requests: Sequence[EngineRequest], sink: Sink) -> None:
        taken.extend(requests)
        add_all(core, requests, sink)

    stub = await deployment.start_generation()
    monkeypatch.setattr(EngineCore, "add_all", noted)
    asked = asking("", token_ids=pb.TokenIds(ids=[70, 80]), max_tokens=5, verify="VERIFY_MODE_INLINE", tenant="acme")
    await stub.Generate(asked)
    assert [(request.reuse, request.method == "off") for request in taken] == [(True, False), (False, True)]
    await stub.Generate(asking(method="off", max_tokens=2, tenant="acme"))
    assert (taken[-1].reuse, taken[-1].tenant) == (True, "acme")


async def test_another_base_tokenizer_or_profile_is_unreplayable_and_never_a_deviation(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    response = await stub.Generate(asking("", token_ids=pb.TokenIds(ids=[70, 80]), max_tokens=6))
    ((receipt, content),) = receipts_of(response, deployment)
    other = "cidv1:sha256:" + "0" * 64
    changed = [replace(receipt, **{name: other}) for name in ("base_cid", "tokenizer_cid", "profile_cid")]
    changed.append(replace(receipt, profile_cid=OLD_PROFILE))
    exact, *findings = await judged(deployment, [(each, content) for each in (receipt, *changed)])
    assert exact.outcome == "EXACT"
    for found in findings:
        assert (found.outcome, found.deviation, found.passed, found.tampered) == ("UNREPLAYABLE", None, False, False)
    assert OLD_PROFILE in (findings[-1].reason or "")
    assert receipt.profile_cid in (findings[-1].reason or "")


async def test_a_request_that_the_engine_cannot_run_is_unreplayable(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    response = await stub.Generate(asking("", token_ids=pb.TokenIds(ids=[70]), max_tokens=3))
    ((receipt, content),) = receipts_of(response, deployment)
    own = await asyncio.to_thread(OwnEngine.load, EnginePlan(deployment.model), threading.Event())
    for prompt in ((), (9999,)):
        with pytest.raises(CannotReplay):
            own.replay(receipt, replace(content, prompt_token_ids=prompt), DECODE)
