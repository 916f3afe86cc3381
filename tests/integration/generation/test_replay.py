"""Replay: for auditors, on the same profile, with speculation off."""

from __future__ import annotations

from typing import Any

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from ledger.verification import verify_receipt
from services.generation.engine.core import EngineCore
from services.generation.engine.events import Sink
from services.generation.engine.request import EngineRequest
from tests.integration.generation.house import House, asking, failure

AUDITOR = (("kolm-role", "auditor"),)


def replaying(response: pb.GenerateResponse, prompt: list[int], **changes: Any) -> pb.ReplayRequest:
    """What an auditor sends for the response's first choice."""
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


async def test_a_replay_reproduces_tokens_digest_and_margins_of_each_choice(house: House) -> None:
    stub = await house.start_generation()
    prompt = [70, 80, 90]
    asked = asking("", token_ids=pb.TokenIds(ids=prompt), max_tokens=40, n=2, temperature=0.8, seed=2**60)
    response = await stub.Generate(asked)
    for choice in response.choices:
        receipt = verify_receipt(choice.receipt.envelope, house.trust())
        replay = await stub.Replay(replaying(response, prompt, choice=choice.index), metadata=AUDITOR)
        assert replay.token_ids == choice.token_ids
        assert replay.stream_digest == receipt.output.stream_digest
        assert replay.profile_cid == receipt.profile_cid
        assert min(replay.margins) == receipt.output.min_margin
        assert replay.decode_seconds > 0
    part = await stub.Replay(replaying(response, prompt, max_output_tokens=7), metadata=AUDITOR)
    assert list(part.token_ids) == list(response.choices[0].token_ids)[:7]


async def test_replays_begin_with_nothing_that_others_have_computed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[EngineRequest] = []
    add = EngineCore.add

    def noted(core: EngineCore, request: EngineRequest, sink: Sink) -> None:
        taken.append(request)
        add(core, request, sink)

    stub = await house.start_generation()
    monkeypatch.setattr(EngineCore, "add", noted)
    asked = asking("", token_ids=pb.TokenIds(ids=[70, 80]), max_tokens=5, verify="VERIFY_MODE_INLINE", tenant="acme")
    response = await stub.Generate(asked)
    await stub.Replay(replaying(response, [70, 80]), metadata=AUDITOR)
    assert [(request.reuse, request.method == "off") for request in taken] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    await stub.Generate(asking(method="off", max_tokens=2, tenant="acme"))
    assert (taken[-1].reuse, taken[-1].tenant) == (True, "acme")


async def test_only_auditors_may_replay_and_with_a_secret_only_those_who_know_it(house: House) -> None:
    stub = await house.start_generation(auditor_secret="s3cret")
    response = await stub.Generate(asking("", token_ids=pb.TokenIds(ids=[70]), max_tokens=3))
    request = replaying(response, [70])
    assert (await failure(stub.Replay(request))).code.name == "PERMISSION_DENIED"
    assert (await failure(stub.Replay(request, metadata=AUDITOR))).code.name == "UNAUTHENTICATED"
    known = (*AUDITOR, ("authorization", "Bearer s3cret"))
    assert (await stub.Replay(request, metadata=known)).token_ids == response.choices[0].token_ids


async def test_what_is_not_served_here_is_unreplayable_and_bad_fields_are_named(house: House) -> None:
    stub = await house.start_generation()
    response = await stub.Generate(asking("", token_ids=pb.TokenIds(ids=[70]), max_tokens=3))
    for field in ("base_cid", "tokenizer_cid", "profile_cid"):
        other = replaying(response, [70], **{field: "cidv1:sha256:" + "0" * 64})
        refused = await failure(stub.Replay(other, metadata=AUDITOR))
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
        assert (await failure(stub.Replay(request, metadata=AUDITOR))).fields == [field]
