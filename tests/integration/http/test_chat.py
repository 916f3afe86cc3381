"""`/v1/chat/completions` by OpenAI's own client."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from kolm.ledger.v1 import ledger_pb2
from ledger.audit.log_verification import verify_receipt
from ledger.bundle.receipt_file import ReceiptFile
from ledger.errors import FormatError
from tests.integration.generation.deployment import Deployment
from tests.integration.http.front import fronting

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What does the ledger keep?"}],
    "max_completion_tokens": 24,
    "seed": 5,
}


async def streamed(client: openai.AsyncOpenAI, **asked: Any) -> list[ChatCompletionChunk]:
    return [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(pieces)


async def test_a_stream_names_its_receipts_before_its_first_event(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(**ASKED, n=2, stream=True)
    chunks = [chunk async for chunk in raw.parse()]
    ended = [each for chunk in chunks for each in (chunk.model_extra or {}).get("kolm", {}).get("receipts", [])]
    assert raw.headers["x-receipt-id"].split(", ") == list(dict.fromkeys(each["receipt_id"] for each in ended))
    assert len({each["receipt_id"] for each in ended}) == 2
    assert (chunks[0].model_extra or {})["kolm"]["ai_generated"] is True


async def test_an_answer_is_openai_s_with_the_receipt_that_the_ledger_holds(
    client: openai.AsyncOpenAI, deployment: Deployment
) -> None:
    raw = await client.chat.completions.with_raw_response.create(**ASKED)
    answer: ChatCompletion = raw.parse()
    ChatCompletion.model_validate(answer.model_dump())
    (choice,) = answer.choices
    assert (answer.object, answer.model, choice.finish_reason) == ("chat.completion", "tiny", "length")
    assert (choice.message.role, bool(choice.message.content)) == ("assistant", True)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    extra: Any = answer.model_extra
    (receipt,) = extra["kolm"]["receipts"]
    assert raw.headers["x-receipt-id"] == receipt["receipt_id"]
    assert extra["kolm"]["ai_generated"] is True
    assert answer.system_fingerprint == "fp_" + extra["kolm"]["profile_cid"].split(":")[-1][:12]
    stored = await (await deployment.ledger()).GetReceipt(
        ledger_pb2.GetReceiptRequest(receipt_id=receipt["receipt_id"])
    )
    assert stored.receipt.index == receipt["ledger_index"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_receipt_file_opens_what_was_sent_and_answered(
    client: openai.AsyncOpenAI, deployment: Deployment, stream: bool
) -> None:
    asked = ASKED | {"extra_body": {"kolm": {"receipt_files": True, "nonce": "mine"}}}
    if stream:
        chunks = await streamed(client, **asked)
        text, extra = text_of(chunks), chunks[-1].model_extra
    else:
        answer = await client.chat.completions.create(**asked)
        text, extra = answer.choices[0].message.content or "", answer.model_extra
    assert extra is not None
    (receipt,) = extra["kolm"]["receipts"]
    file = ReceiptFile.from_bytes(receipt["file"].encode())
    assert (file.text, file.sent) == (text, tuple(ASKED["messages"]))
    assert file.receipt().nonce == "mine"
    assert verify_receipt(file.envelope.to_bytes(), deployment.trust()).receipt_id == receipt["receipt_id"]
    with pytest.raises(FormatError):
        dataclasses.replace(file, text=text + "x").receipt()


@pytest.mark.parametrize("continued", [True, False])
async def test_a_last_message_of_the_assistant_is_continued_where_that_is_asked(
    client: openai.AsyncOpenAI, continued: bool
) -> None:
    turns = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, "}]
    beside = {"continue_final_message": True, "add_generation_prompt": False} if continued else {}
    chat = await client.chat.completions.create(
        model="tiny", messages=turns, max_tokens=8, temperature=0,
        extra_body={**beside, "kolm": {"receipt_files": True}},
    )  # fmt: skip
    prompt = "<|user|>Count.<|end|><|assistant|>1, " + ("" if continued else "<|end|><|assistant|>")
    text = await client.completions.create(model="tiny", prompt=prompt, max_tokens=8, temperature=0)
    assert chat.choices[0].message.content == text.choices[0].text
    assert chat.usage is not None
    assert text.usage is not None
    assert chat.usage.prompt_tokens == text.usage.prompt_tokens
    file = ReceiptFile.from_bytes(chat.model_extra["kolm"]["receipts"][0]["file"].encode())  # type: ignore[index]
    assert isinstance(file.sent, tuple)
    assert file.sent[-1] == turns[-1] | ({"continued": "true"} if continued else {})


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
    ids=["both", "neither", "a last message of the user"],
)
async def test_what_cannot_be_continued_is_refused_by_its_name(
    client: openai.AsyncOpenAI, members: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**ASKED, extra_body=members)
    assert refused.value.param == param


@pytest.mark.parametrize("parts", [False, True], ids=["a text", "parts"])
async def test_what_was_predicted_is_drafted_and_counted(client: openai.AsyncOpenAI, parts: bool) -> None:
    asked = {**ASKED, "max_completion_tokens": 60}
    first = await client.chat.completions.create(**asked)
    text = first.choices[0].message.content
    assert text is not None
    content: Any = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}] if parts else text
    counted = {}
    for method in ("off", "lookahead"):
        answer = await client.chat.completions.create(
            **asked, prediction={"type": "content", "content": content}, extra_body={"kolm": {"method": method}}
        )
        assert answer.choices[0].message.content == text
        assert answer.usage is not None
        assert answer.usage.completion_tokens_details is not None
        counted[method] = answer.usage.completion_tokens_details
    assert (counted["lookahead"].accepted_prediction_tokens or 0) > 0
    assert counted["off"].accepted_prediction_tokens == counted["off"].rejected_prediction_tokens == 0
    assert first.usage is not None
    assert first.usage.completion_tokens_details is not None
    assert first.usage.completion_tokens_details.accepted_prediction_tokens == 0


async def test_a_seed_repeats_and_no_seed_differs(client: openai.AsyncOpenAI) -> None:
    first, again = [(await client.chat.completions.create(**ASKED)).choices[0].message.content for _ in range(2)]
    assert first == again
    unseeded = {name: value for name, value in ASKED.items() if name != "seed"}
    drawn = {(await client.chat.completions.create(**unseeded)).choices[0].message.content for _ in range(3)}
    assert len(drawn) == 3, "an absent temperature is 1, as OpenAI's is"


async def test_a_stream_adds_up_to_the_whole_answer(client: openai.AsyncOpenAI) -> None:
    asked = {**ASKED, "n": 3, "logprobs": True, "top_logprobs": 2}
    whole = await client.chat.completions.create(**asked)
    chunks = await streamed(client, **asked, stream_options={"include_usage": True})
    for choice in whole.choices:
        assert text_of(chunks, choice.index) == choice.message.content
        mine = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert [each.delta.role for each in mine if each.delta.role] == ["assistant"]
        assert [each.finish_reason for each in mine if each.finish_reason] == [choice.finish_reason]
        positions = [position for each in mine if each.logprobs for position in each.logprobs.content or ()]
        assert choice.logprobs is not None
        assert positions == choice.logprobs.content
        assert {len(position.top_logprobs) for position in positions} == {2}
    assert len({choice.message.content for choice in whole.choices}) == 3
    *others, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.usage.prompt_tokens, 72)
    assert {chunk.usage for chunk in others} == {None}
    assert len({chunk.id for chunk in chunks}) == 1
    extra: Any = last.model_extra
    assert [receipt["index"] for receipt in extra["kolm"]["receipts"]] == [0, 1, 2]
    first: Any = chunks[0].model_extra
    assert first["kolm"]["promise"]
    assert "receipts" not in first["kolm"]
    told: list[Any] = [chunk.model_extra for chunk in chunks]
    assert sum("promise" in (extra or {}).get("kolm", {}) for extra in told) == 1


async def test_a_stream_without_usage_ends_with_its_choice_and_its_receipt(client: openai.AsyncOpenAI) -> None:
    chunks = await streamed(client, **ASKED)
    last: Any = chunks[-1].model_extra
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(last["kolm"]["receipts"]) == 1
    assert "usage" not in chunks[-1].model_fields_set


async def test_every_parameter_of_sampling_reaches_the_receipt(
    client: openai.AsyncOpenAI, deployment: Deployment
) -> None:
    asked = ASKED | {
        "temperature": 0.75, "top_p": 0.5, "presence_penalty": 0.25, "frequency_penalty": -0.5,
        "logit_bias": {"300": -100, "301": 2.5}, "stop": "\x00", "user": "a user",
        "extra_body": {"top_k": 40, "min_p": 0.125, "min_tokens": 2, "repetition_penalty": 1.25, "ignore_eos": True,
                       "stop_token_ids": [383],
                       "kolm": {"tenant": "acme", "nonce": "mine", "request_id": "r-1", "k": 2}},
    }  # fmt: skip
    raw = await client.chat.completions.with_raw_response.create(**asked)
    stored = await (await deployment.ledger()).GetReceipt(
        ledger_pb2.GetReceiptRequest(receipt_id=raw.headers["x-receipt-id"])
    )
    receipt = verify_receipt(stored.receipt.envelope, deployment.trust())
    used = receipt.sampling
    assert (used.temperature, used.top_p, used.top_k, used.min_p, used.seed) == (0.75, 0.5, 40, 0.125, 5)
    assert (used.presence_penalty, used.frequency_penalty, used.repetition_penalty) == (0.25, -0.5, 1.25)
    assert (dict(used.logit_bias), used.stop, used.stop_token_ids) == ({300: -100.0, 301: 2.5}, ("\x00",), (383,))
    assert (used.max_tokens, used.min_tokens, used.ignore_eos) == (24, 2, True)
    assert (receipt.tenant, receipt.nonce, receipt.request_id) == ("acme", "mine", "r-1")
    assert raw.parse().id == "chatcmpl-r-1"


async def test_what_asks_for_nothing_is_taken_and_parts_of_text_are_one_text(client: openai.AsyncOpenAI) -> None:
    whole = (await client.chat.completions.create(**ASKED)).choices[0].message
    parts = [{"type": "text", "text": "What does "}, {"type": "text", "text": "the ledger keep?"}]
    asked = ASKED | {
        "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}],
        "response_format": {"type": "text"}, "tools": [], "store": False, "n": 1, "stop": None, "logprobs": False,
        "top_logprobs": 0, "metadata": {}, "safety_identifier": "a user", "prompt_cache_key": "brief",
        "extra_body": {"kolm": None, "top_k": -1, "skip_special_tokens": True, "add_generation_prompt": True},
    }  # fmt: skip
    assert (await client.chat.completions.create(**asked)).choices[0].message.content == whole.content
    continued = [*ASKED["messages"], whole.model_dump(), {"role": "user", "content": "And then?"}]
    assert (await client.chat.completions.create(**ASKED | {"messages": continued})).choices


async def test_an_answer_keeps_to_its_schema_whole_and_in_pieces(client: openai.AsyncOpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["drafter", "target"]},
            "tokens": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["kind", "tokens"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "pass", "schema": schema, "strict": True}}
    asked = ASKED | {"max_completion_tokens": 60, "response_format": wanted}
    answer = (await client.chat.completions.create(**asked)).choices[0]
    jsonschema.validate(json.loads(answer.message.content or ""), schema)
    assert answer.finish_reason == "stop"
    assert text_of(await streamed(client, **asked)) == answer.message.content
    chosen = ASKED | {"extra_body": {"structured_outputs": {"choice": ["signed", "sent"]}}}
    assert (await client.chat.completions.create(**chosen)).choices[0].message.content in ("signed", "sent")


async def test_the_page_s_batch_waits_out_refusals_and_goes_on_where_it_was(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs/openai.md").read_text()
    (example,) = (each.split("```")[0] for each in page.split("```python\n") if "results.jsonl" in each)
    program = example.replace('model="smollm2"', 'model="tiny", max_completion_tokens=8')
    monkeypatch.chdir(tmp_path)

    def results() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]

    async with fronting(deployment.generation_address, max_requests=1) as front:
        http = openai.DefaultHttpxClient(trust_env=False)
        with openai.OpenAI(base_url=front.client.base_url, api_key="any", http_client=http) as client:
            await asyncio.to_thread(exec, program, {"client": client})
            first = results()
            (tmp_path / "results.jsonl").write_text(json.dumps(first[1]) + "\n")
            await asyncio.to_thread(exec, program, {"client": client})
    assert {result["id"] for result in first} == {"q1", "q2"}
    assert all(result["text"] and result["receipts"] for result in first)
    assert [result["id"] for result in results()] == [first[1]["id"], first[0]["id"]]
