"""/v1/responses, as OpenAI's own client reads it: whole, streamed, continued, refused."""

from typing import Annotated, Any, Literal

import openai
import pydantic
import pytest
from openai.types.responses import Response

from ledger.audit.log_verification import verify_receipt
from ledger.bundle.receipt_file import ReceiptFile
from tests.integration.generation.deployment import Deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKED: dict[str, Any] = {"model": "tiny", "input": "hello", "max_output_tokens": 20, "extra_body": {"seed": 7}}


async def test_a_response_is_the_chat_s_answer(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(**ASKED, instructions="Be brief.")
    turns: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    chat = await client.chat.completions.create(model="tiny", messages=turns, max_completion_tokens=20, seed=7)
    assert response.output_text == chat.choices[0].message.content
    assert response.status == {"stop": "completed", "length": "incomplete"}[chat.choices[0].finish_reason]
    assert response.usage is not None
    assert chat.usage is not None
    counted = (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens)
    assert counted == (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens)
    extra: Any = response.model_extra
    assert extra["kolm"]["receipts"][0]["ledger_index"] is not None


async def test_a_stream_adds_up_to_the_whole_response(client: openai.AsyncOpenAI, deployment: Deployment) -> None:
    whole = await client.responses.create(**ASKED)
    more = {"extra_body": {"seed": 7, "kolm": {"receipt_files": True}}}
    events = [event async for event in await client.responses.create(**ASKED | more, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        f"response.{whole.status}",
    ]  # fmt: skip
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    ended: Any = events[-1]
    assert isinstance(ended.response, Response)
    assert (ended.response.output_text, ended.response.usage) == (whole.output_text, whole.usage)
    assert ended.response.incomplete_details == whole.incomplete_details
    told = [
        event.response.model_extra["kolm"] for event in events if isinstance(getattr(event, "response", None), Response)
    ]
    assert ["promise" in kolm for kolm in told] == [True, False, False]
    (receipt,) = ended.response.model_extra["kolm"]["receipts"]
    file = ReceiptFile.from_bytes(receipt["file"].encode())
    assert verify_receipt(file.envelope.to_bytes(), deployment.trust()).receipt_id == receipt["receipt_id"]
    assert file.text == whole.output_text


async def test_what_was_answered_can_be_sent_back(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(**ASKED)
    turn: Any = {"role": "user", "content": [{"type": "input_text", "text": "go on"}]}
    again = await client.responses.create(**ASKED | {"input": [turn, *first.output, turn]})
    turns: Any = [
        {"role": "user", "content": "go on"}, {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "go on"},
    ]  # fmt: skip
    chat = await client.chat.completions.create(model="tiny", messages=turns, max_completion_tokens=20, seed=7)
    assert again.output_text == chat.choices[0].message.content


TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}


class Pass(pydantic.BaseModel):
    kind: Literal["drafter", "target"]
    tokens: Annotated[int, pydantic.Field(ge=0, le=9)]


async def test_a_response_keeps_to_the_class_that_a_client_parses_it_into(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.parse(**ASKED | {"max_output_tokens": 60}, text_format=Pass)
    assert isinstance(response.output_parsed, Pass)
    wanted: Any = response.text and response.text.format
    assert (wanted.type, wanted.name, wanted.strict) == ("json_schema", "Pass", True)
    async with client.responses.stream(**ASKED | {"max_output_tokens": 60}, text_format=Pass) as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        streamed = await stream.get_final_response()
    assert ("".join(texts), streamed.output_parsed) == (response.output_text, response.output_parsed)
    nothing: Any = {"reasoning": {"effort": "none"}, "include": ["reasoning.encrypted_content"]}
    anything = await client.responses.create(**ASKED | nothing, text={"format": {"type": "json_object"}})
    assert anything.output_text.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "sting"}}}}, "text.format.schema"),
        (
            {"text": {"format": {"type": "json_object"}}, "extra_body": {"structured_outputs": {"choice": ["a"]}}},
            "text",
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"store": True}, "store"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "a", "arguments": '{"b'}]}, "input[0].arguments"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"include": ["message.output_text.logprobs"], "tools": [TOOL]}, "include"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"tempreture": 2}}, "tempreture"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_what_it_cannot_do_is_refused_by_its_name(
    client: openai.AsyncOpenAI, members: dict[str, Any], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(**ASKED | members, stream=stream)
    assert refused.value.param is not None
    assert refused.value.param.startswith(param)
