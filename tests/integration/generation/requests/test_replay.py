"""Replay: for auditors, on the same profile, with speculation off."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.ledger.v1 import ledger_pb2
from ledger.audit.log_verification import verify_receipt
from ledger.documents.content import Content
from ledger.documents.signed_document import sign_document
from ledger.encoding.cid import cid_of_json
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from services.auditor.examination import Examiner
from services.auditor.finding import Finding
from services.auditor.replays.server_replayer import PatientReplayer
from services.client.generation.runtime import Runtime
from services.generation.engine.core import EngineCore
from services.generation.engine.events import Sink
from services.generation.engine.request import EngineRequest
from tests.integration.generation.deployment import Deployment, asking, failure

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
"""Of a receipt that was made before the arithmetic was kolm's own."""


def replaying(response: pb.GenerateResponse, prompt: list[int], **changes: Any) -> pb.ReplayRequest:
    """An auditor's request for the response's first choice."""
    resolved = response.resolved
    members = {
        "prompt_token_ids": prompt,
        "sampling": resolved.sampling,
        "choice": 0,
        "max_output_tokens": len(response.choices[0].token_ids),
        "base_cid": resolved.base_cid,
        "tokenizer_cid": resolved.tokenizer_cid,
        "profile_cid": resolved.profile_cid,
    }
    return pb.ReplayRequest(**(members | changes))


async def test_a_replay_reproduces_tokens_digest_and_margins_of_each_choice(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    prompt = [70, 80, 90]
    asked = asking("", token_ids=pb.TokenIds(ids=prompt), max_tokens=40, n=2, temperature=0.8, seed=2**60)
    response = await stub.Generate(asked)
    for choice in response.choices:
        receipt = verify_receipt(choice.receipt.envelope, deployment.trust())
        replay = await stub.Replay(replaying(response, prompt, choice=choice.index))
        assert replay.token_ids == choice.token_ids
        assert replay.stream_digest == receipt.output.stream_digest
        assert replay.profile_cid == receipt.profile_cid
        assert min(replay.margins) == receipt.output.min_margin
        assert replay.decode_seconds > 0
    part = await stub.Replay(replaying(response, prompt, max_output_tokens=7))
    assert list(part.token_ids) == list(response.choices[0].token_ids)[:7]


async def test_replays_begin_with_nothing_that_others_have_computed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[EngineRequest] = []
    add = EngineCore.add

    def noted(core: EngineCore, request: EngineRequest, sink: Sink) -> None:
        taken.append(request)
        add(core, request, sink)

    stub = await deployment.start_generation()
    monkeypatch.setattr(EngineCore, "add", noted)
    asked = asking("", token_ids=pb.TokenIds(ids=[70, 80]), max_tokens=5, verify="VERIFY_MODE_INLINE", tenant="acme")
    response = await stub.Generate(asked)
    await stub.Replay(replaying(response, [70, 80]))
    assert [(request.reuse, request.method == "off") for request in taken] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    await stub.Generate(asking(method="off", max_tokens=2, tenant="acme"))
    assert (taken[-1].reuse, taken[-1].tenant) == (True, "acme")


async def test_what_is_not_served_here_is_unreplayable_and_bad_fields_are_named(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    response = await stub.Generate(asking("", token_ids=pb.TokenIds(ids=[70]), max_tokens=3))
    for field in ("base_cid", "tokenizer_cid", "profile_cid"):
        other = replaying(response, [70], **{field: "cidv1:sha256:" + "0" * 64})
        refused = await failure(stub.Replay(other))
        assert (refused.code.name, refused.reason) == ("FAILED_PRECONDITION", "UNREPLAYABLE")
    for request, field in (
        (replaying(response, []), "prompt_token_ids"),
        (replaying(response, [9999]), "prompt_token_ids"),
        (replaying(response, [70], choice=16), "choice"),
        (
            replaying(response, [70], sampling=asking(temperature=1.0).sampling),
            "sampling.seed",
        ),
    ):
        assert (await failure(stub.Replay(request))).fields == [field]


async def test_a_receipt_of_another_profile_is_unreplayable_and_never_a_deviation(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    response = await stub.Generate(asking("", token_ids=pb.TokenIds(ids=[70, 80]), max_tokens=6))
    envelope = response.choices[0].receipt.envelope
    served = verify_receipt(envelope, deployment.trust()).profile_cid
    assert (await examined(deployment, envelope)).outcome == "EXACT"
    old = await examined(deployment, re_signed(deployment, envelope, profile_cid=OLD_PROFILE))
    assert (old.outcome, old.deviation, old.passed, old.tampered) == ("UNREPLAYABLE", None, False, False)
    assert f"the receipt names numerics profile {OLD_PROFILE}, served here is {served}" in (old.reason or "")
    assert "made before kolm-arithmetic/1, by a vendor's kernels, cannot be computed again here" in (old.reason or "")
    assert "run the version that made them" in (old.reason or "")


def re_signed(deployment: Deployment, envelope: bytes, **changes: Any) -> bytes:
    """The receipt with other fields, signed by the server's own key."""
    key = SigningKey.load(deployment.settings().receipts_key, "receipts")
    return sign_document(replace(verify_receipt(envelope, deployment.trust()), **changes), key).to_bytes()


async def examined(deployment: Deployment, envelope: bytes) -> Finding:
    """An auditor's finding about a receipt whose content is that of the log's first one."""
    first = (await deployment.receipts(1))[0].receipt_id
    kept = (
        await (await deployment.ledger()).GetReceipt(
            ledger_pb2.GetReceiptRequest(receipt_id=first, include_content=True)
        )
    ).content
    content = Content(
        kept.prompt_salt, tuple(kept.prompt_token_ids), kept.output_salt, tuple(kept.output_token_ids)
    )  # fmt: skip

    def examine() -> Finding:
        with Runtime.connect(deployment.generation_address) as runtime:
            replayer = PatientReplayer(runtime, 60.0, threading.Event())
            return Examiner(deployment.trust(), lambda _: content, replayer).examine(Envelope.from_bytes(envelope))

    return await asyncio.to_thread(examine)
