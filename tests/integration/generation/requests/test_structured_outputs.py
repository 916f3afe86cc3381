"""Structured output over the wire: answers that keep to it, receipts that commit to it, audits that confirm it."""

import asyncio
import json
import threading
from importlib.metadata import version
from typing import Any

import jsonschema
import pytest

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1 import sampling_pb2
from ledger.audit.log_verification import verify_receipt
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from services.auditor.examination import EnginePlan, Judge
from services.auditor.own_engine import OwnEngine
from services.client.errors import InvalidArgument
from services.client.generation.request import Request, SamplingParams, StructuredOutputs
from services.client.generation.runtime import Runtime
from tests.fakes.grammars import CONSTRAINTS, PERSON, SLOW, grammar
from tests.integration.generation.deployment import Deployment, asking, failure
from tests.mutations import replace

ASKED = (
    StructuredOutputs(json=PERSON),
    StructuredOutputs(json_object=True),
    StructuredOutputs(regex=CONSTRAINTS[2].text),
    StructuredOutputs(choice=["signed", "söner", 'a "quoted"\nline']),
    StructuredOutputs(grammar=CONSTRAINTS[4].text),
)


def generated(deployment: Deployment) -> list[tuple[StructuredOutputs, Receipt, Content, str]]:
    found = []
    with Runtime.connect(deployment.generation_address) as runtime:
        for number, asked in enumerate(ASKED):
            sampling = SamplingParams(max_tokens=120, temperature=1.0, seed=number, structured_outputs=asked)
            completion = runtime.serve(Request(prompt="The ledger keeps", sampling=sampling))
            (choice,) = completion.choices
            assert choice.receipt is not None
            document = choice.receipt.verify(deployment.trust())
            found.append((asked, document, choice.receipt.content, choice.text))
    return found


async def test_answers_keep_to_it_and_both_ways_of_replay_find_them_exact(deployment: Deployment) -> None:
    await deployment.start_generation()
    answers = await asyncio.to_thread(generated, deployment)
    for asked, document, content, text in answers:
        part = document.sampling.structured_outputs
        assert part is not None
        assert (part.kind, content.structured_outputs) == (asked.kind, asked.text)
        if document.output.finish_reason == "stop" and asked.json is not None:
            jsonschema.validate(json.loads(text), PERSON)
        if asked.choice is not None:
            assert text in asked.choice

    def judged() -> list[tuple[str, str | None]]:
        own = OwnEngine.load(EnginePlan(deployment.model), threading.Event())
        return [(j.judge(document, content).outcome, j.judge(document, content).reason)
                for j in (Judge(own, 0.0), Judge(own, 1.0)) for _, document, content, _ in answers]  # fmt: skip

    assert await asyncio.to_thread(judged) == [("EXACT", None)] * 2 * len(ASKED)


async def test_a_replay_under_another_constraint_or_library_is_never_exact(deployment: Deployment) -> None:
    await deployment.start_generation()
    _, document, content, _ = (await asyncio.to_thread(generated, deployment))[3]
    part = document.sampling.structured_outputs
    assert part is not None

    def judged(**changes: Any) -> tuple[str, str | None]:
        changed = replace(document, sampling=replace(document.sampling, structured_outputs=replace(part, **changes)))
        own = OwnEngine.load(EnginePlan(deployment.model), threading.Event())
        found = Judge(own).judge(changed, content)
        return found.outcome, found.reason

    for engine in ("llguidance/0.9.0", f"llguidance/{version('llguidance')}"):  # of before there were revisions
        other = await asyncio.to_thread(judged, engine=engine)
        assert other[0] == "UNREPLAYABLE"
        assert f"the receipt names {engine}" in (other[1] or "")
    assert (await asyncio.to_thread(judged, kind="poem"))[0] == "UNREPLAYABLE"

    def dropped() -> str:
        own = OwnEngine.load(EnginePlan(deployment.model), threading.Event())
        free = replace(document, sampling=replace(document.sampling, structured_outputs=None))
        return Judge(own, 1.0).judge(free, replace(content, structured_outputs=None)).outcome

    assert await asyncio.to_thread(dropped) == "DEVIATION"


async def test_a_constraint_that_becomes_too_costly_on_the_way_is_the_requests_fault(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    nested = sampling_pb2.StructuredOutputs(regex="(((a{1,99}){1,99}){1,99}){1,99}")
    never_ends = {grammar(CONSTRAINTS[2]).eos: -100.0}
    asked = asking(structured_outputs=nested, max_tokens=100, n=2, logit_bias=never_ends)

    async def streamed() -> None:
        async for event in stub.GenerateStream(pb.GenerateStreamRequest(request=asked)):
            assert event.WhichOneof("event") != "finished"

    for call in (stub.Generate, lambda _: streamed()):
        refused = await failure(call(asked))
        assert refused.code.name == "INVALID_ARGUMENT"
        assert refused.fields == ["sampling.structured_outputs.regex"]
        assert len(refused.metadata["receipt_ids"].split(",")) == 2
    receipts = await deployment.receipts(4)
    assert {each.output.finish_reason for each in receipts} == {"error"}
    assert {each.output.tokens for each in receipts} == {receipts[0].output.tokens} != {0}


async def test_what_cannot_be_compiled_is_refused_by_its_field(deployment: Deployment) -> None:
    stub = await deployment.start_generation()
    for constraint, field, why in (
        ({"json": '{"properties": {"a": {"format": "ean"}}}'}, "json", "Unknown format"),
        ({"regex": "(a"}, "regex", "unclosed group"),
        ({"choice": sampling_pb2.Choices()}, "choice", "has 0 texts"),
        ({"grammar": "start: missing"}, "grammar", "unknown name"),
    ):
        asked = asking(structured_outputs=sampling_pb2.StructuredOutputs(**constraint))
        refused = await failure(stub.Generate(asked))
        assert refused.code.name == "INVALID_ARGUMENT"
        assert refused.fields == [f"sampling.structured_outputs.{field}"]
        assert why in refused.message
    both = asking(structured_outputs=sampling_pb2.StructuredOutputs(json_object=True), min_tokens=3, max_tokens=9)
    assert (await failure(stub.Generate(both))).fields == ["sampling.min_tokens"]
    response: pb.GenerateResponse = await stub.Generate(
        asking(
            structured_outputs=sampling_pb2.StructuredOutputs(choice={"texts": ["signed"]}), verify="VERIFY_MODE_INLINE"
        )
    )
    assert response.choices[0].text == "signed"
    assert response.resolved.sampling.structured_outputs.engine.startswith("llguidance/")
    receipt = verify_receipt(response.choices[0].receipt.envelope, deployment.trust())
    assert receipt.spec_decode.verified_identical_to_off is True
    with Runtime.connect(deployment.generation_address) as runtime, pytest.raises(InvalidArgument):
        runtime.serve(Request(prompt="x", sampling=SamplingParams(structured_outputs=StructuredOutputs())))


async def test_cpu_seconds_of_grammars_count_in_the_tenant_s_quota(deployment: Deployment) -> None:
    stub = await deployment.start_generation(quota=("one=grammar_seconds:1",))

    def asked(tenant: str, **constraint: Any) -> pb.GenerateRequest:
        return asking(tenant=tenant, structured_outputs=sampling_pb2.StructuredOutputs(**constraint))

    slow = await failure(stub.Generate(asked("one", json=SLOW)))
    assert (slow.code.name, slow.reason) == ("UNAVAILABLE", "GRAMMAR_TIMEOUT")
    refused = await failure(stub.Generate(asked("one", regex="yes")))
    assert (refused.code.name, refused.reason) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED")
    assert refused.metadata["quota"] == "grammar_seconds"
    assert 0 < refused.retry_seconds < 300
    plain, other = await asyncio.gather(stub.Generate(asking(tenant="one")), stub.Generate(asked("two", regex="yes")))
    assert plain.choices[0].text
    assert other.choices[0].text == "yes"
    counted = deployment.metrics["generation"].get_sample_value
    for reason in ("grammar_timeout", "quota_grammar_seconds"):
        assert counted("kolm_requests_refused_total", {"reason": reason}) == 1


async def test_grammars_that_would_end_the_server_or_keep_it_busy_cost_their_own_requests(
    deployment: Deployment,
) -> None:
    stub = await deployment.start_generation()
    chain = "\n".join(["start: r0", *(f'r{n}: r{n + 1} | "a"' for n in range(4000)), 'r4000: "b"'])
    bombs = (
        {"grammar": chain},
        {"grammar": "start: (" * 1000 + '"a"' + ")" * 1000},
        {"json": '{"type": "integer", "multipleOf": 9999999}'},
        {"json": json.dumps({"allOf": [{"multipleOf": step} for step in (10007, 10009, 10037, 10039)]})},
    )

    async def refused(bomb: dict[str, Any]) -> None:
        got = await failure(stub.Generate(asking(structured_outputs=sampling_pb2.StructuredOutputs(**bomb))))
        assert got.code.name == "INVALID_ARGUMENT"
        assert got.fields == [f"sampling.structured_outputs.{next(iter(bomb))}"]

    async def answered(number: int) -> None:
        honest = sampling_pb2.StructuredOutputs(regex=f"honest {number}")
        answer: pb.GenerateResponse = await stub.Generate(asking(structured_outputs=honest, max_tokens=40))
        assert answer.choices[0].text == f"honest {number}"

    await asyncio.gather(*(each for n, bomb in enumerate(bombs) for each in (refused(bomb), answered(n))))
    await answered(len(bombs))
