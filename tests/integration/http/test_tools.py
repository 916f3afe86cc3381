"""Tools by OpenAI's own client: calls that keep to schemas, streamed and sent back, receipts that replay EXACT."""

import asyncio
import json
import threading
from itertools import pairwise
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from ledger.bundle.receipt_file import ReceiptFile
from services.auditor.examination import EnginePlan, Judge
from services.auditor.own_engine import OwnEngine
from tests.fakes.grammars import HERMES, encoded
from tests.integration.generation.deployment import Deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT_TEMPLATE = HERMES

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK = {
    "type": "object",
    "properties": {"zone": {"enum": ["UTC", "CET"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {"get_weather": WEATHER, "get_time": CLOCK}
TOOLS: Any = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in SCHEMAS.items()]
FLAT: Any = [{"type": "function", "name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Sun?"}],
    "tools": TOOLS,
    "max_completion_tokens": 120,
    "seed": 3,
    "extra_body": {"kolm": {"receipt_files": True, "request_id": "one"}},
}


def calls_of(answer: ChatCompletion) -> list[tuple[str, Any]]:
    """Checked against the schemas."""
    found = []
    for call in answer.choices[0].message.tool_calls or ():
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMAS[call.function.name])
        found.append((call.function.name, arguments))
    return found


def files_of(answer: Any) -> list[ReceiptFile]:
    return [ReceiptFile.from_bytes(each["file"].encode()) for each in answer.model_extra["kolm"]["receipts"]]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}, "allowed"])
async def test_calls_keep_to_their_schemas_and_replay_exact(
    client: openai.AsyncOpenAI, deployment: Deployment, choice: Any
) -> None:
    names = {"get_time"} if isinstance(choice, dict) else set(SCHEMAS)
    if choice == "allowed":
        names, one = {"get_weather"}, {"type": "function", "function": {"name": "get_weather"}}
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    answer = await client.chat.completions.create(**ASKED, tool_choice=choice)
    calls = calls_of(answer)
    assert {name for name, _ in calls} <= names
    assert calls
    assert answer.choices[0].message.content is None
    assert (answer.choices[0].finish_reason, isinstance(choice, dict) and len(calls)) in {
        ("tool_calls", False), ("tool_calls", 1), ("tool_calls", 2),
    }  # fmt: skip
    (file,) = files_of(answer)
    document = file.receipt()
    part = document.sampling.structured_outputs
    assert part is not None
    assert part.kind == "grammar"
    assert file.content.structured_outputs is not None
    assert '"get_time' in file.content.structured_outputs or "get_time" not in names

    def judged() -> str:
        own = OwnEngine.load(EnginePlan(deployment.model), threading.Event())
        return Judge(own, 1.0).judge(document, file.content).outcome

    assert await asyncio.to_thread(judged) == "EXACT"


async def test_a_stream_brings_the_same_calls_piece_by_piece(client: openai.AsyncOpenAI) -> None:
    asked = ASKED | {"n": 2, "tool_choice": "required", "parallel_tool_calls": False}
    whole = await client.chat.completions.create(**asked)
    async with client.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_completion()
    for each, other in zip(whole.choices, streamed.choices, strict=True):
        assert each.finish_reason == other.finish_reason == "tool_calls"
        assert [(c.id, c.function.name, c.function.arguments) for c in each.message.tool_calls or ()] == [
            (c.id, c.function.name, c.function.arguments) for c in other.message.tool_calls or ()
        ]
        assert not other.message.content


async def test_without_parallel_calls_there_is_one_and_strict_tools_are_held_where_the_model_is_free(
    client: openai.AsyncOpenAI,
) -> None:
    for seed in range(3):
        one = await client.chat.completions.create(
            **ASKED | {"seed": seed}, tool_choice="required", parallel_tool_calls=False
        )
        assert len(calls_of(one)) == 1
    strict = [{"type": "function", "function": each["function"] | {"strict": True}} for each in TOOLS]
    free = await client.chat.completions.create(**ASKED | {"tools": strict, "max_completion_tokens": 8})
    (file,) = files_of(free)
    assert "spelled[lazy]" in (file.content.structured_outputs or "")
    assert free.choices[0].finish_reason == "length"


VERDICT = {
    "type": "object",
    "properties": {"verdict": {"enum": ["sun", "rain"]}},
    "required": ["verdict"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": VERDICT, "strict": True}}


async def test_beside_a_response_format_an_answer_is_calls_or_text_that_fits_the_schema(
    client: openai.AsyncOpenAI, deployment: Deployment
) -> None:
    kinds = set()
    for seed in range(4):
        opening = {str(encoded("{" if seed % 2 else "<")[0]): 20}  # which of the two a random model picks
        asked = ASKED | {"seed": seed, "response_format": FORMAT, "logit_bias": opening}
        streams = []
        for method in ("lookahead", "off"):
            kolm = {"kolm": {"receipt_files": True, "request_id": "one", "method": method}}
            answer = await client.chat.completions.create(**asked | {"extra_body": kolm})
            (file,) = files_of(answer)
            streams.append(file.receipt().output.stream_digest)
        assert streams[0] == streams[1]
        choice = answer.choices[0]
        if choice.message.tool_calls:
            kinds.add("calls")
            assert choice.message.content is None
            assert {call.function.name for call in choice.message.tool_calls if call.type == "function"} <= set(SCHEMAS)
        else:
            kinds.add("text")
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.message.content or ""), VERDICT)
        document, content = file.receipt(), file.content

        def judged() -> str:
            own = OwnEngine.load(EnginePlan(deployment.model), threading.Event())
            return Judge(own, 1.0).judge(document, content).outcome  # noqa: B023

        if seed > 1:
            assert await asyncio.to_thread(judged) == "EXACT"
    assert kinds == {"calls", "text"}


async def test_calls_and_their_results_go_back_with_the_next_question(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(**ASKED, tool_choice="required", parallel_tool_calls=False)
    (call,) = first.choices[0].message.tool_calls or ()
    message = first.choices[0].message.model_dump() | {"reasoning_content": "The weather decides."}
    result = {"role": "tool", "content": "sunny", "tool_call_id": call.id}
    asked = ASKED | {"messages": [*ASKED["messages"], message, result], "max_completion_tokens": 4}
    (file,) = files_of(await client.chat.completions.create(**asked))
    assert isinstance(file.sent, tuple)
    assert [turn["role"] for turn in file.sent] == ["tools", "user", "assistant", "tool"]
    assert call.id in file.sent[2]["tool_calls"]
    assert file.sent[2]["reasoning_content"] == message["reasoning_content"]
    assert file.sent[3]["tool_call_id"] == call.id
    named = {**result, "name": call.function.name}  # type: ignore[union-attr]
    again = asked | {"messages": [*ASKED["messages"], message, named]}
    assert files_of(await client.chat.completions.create(**again))[0].sent == file.sent
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(**again | {"messages": [*again["messages"][:-1], named | {"name": "x"}]})


CALL_EVENTS = (
    "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
)  # fmt: skip


async def test_responses_call_functions_whole_and_as_events(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "tiny", "input": "Sun?", "tools": FLAT, "tool_choice": "required", "max_output_tokens": 120,
        "extra_body": {"seed": 3, "kolm": {"request_id": "two"}},
    }  # fmt: skip
    whole = await client.responses.create(**asked)
    calls = [item for item in whole.output if item.type == "function_call"]
    assert calls
    assert calls == whole.output
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    events: list[Any] = [event async for event in await client.responses.create(**asked, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    ended = events[-1].response
    assert isinstance(ended, Response)
    assert ended.output == whole.output
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(each.delta for each in deltas if each.output_index == 0) == calls[0].arguments
    async with client.responses.stream(**asked) as stream:
        helped = [event async for event in stream]
        final: Any = await stream.get_final_response()
    assert [(each.call_id, each.arguments) for each in final.output] == [(c.call_id, c.arguments) for c in calls]
    for some in (events, helped):  # how many pieces the arguments come in is a matter of time
        kinds = [each.type.removeprefix("response.") for each in some]
        once = [kind for before, kind in pairwise(("", *kinds)) if kind != before or not kind.endswith(".delta")]
        assert once == ["created", "in_progress", *CALL_EVENTS * len(calls), "completed"]
    output = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "sunny"}
    turns: Any = [{"role": "user", "content": "Sun?"}, calls[0], output]
    again = await client.responses.create(**asked | {"input": turns, "tool_choice": "auto", "max_output_tokens": 4})
    assert [item.type for item in again.output] == ["message"]


async def test_a_call_that_a_stop_string_cuts_off_is_no_whole_call(client: openai.AsyncOpenAI) -> None:
    one: Any = {"type": "function", "function": {"name": "get_weather"}}
    asked = ASKED | {"tool_choice": one, "stop": ["days"]}
    whole = (await client.chat.completions.create(**asked)).choices[0]
    (call,) = whole.message.tool_calls or ()
    assert call.type == "function"
    assert (whole.finish_reason, whole.message.content) == ("stop", None)
    assert call.function.arguments.endswith('"')
    chunks = [chunk.choices[0] async for chunk in await client.chat.completions.create(**asked, stream=True)]
    assert chunks[-1].finish_reason == "stop"
    assert "".join(chunk.delta.content or "" for chunk in chunks) == ""
    response = await client.responses.create(
        model="tiny", input="Sun?", tools=FLAT, tool_choice={"type": "function", "name": "get_weather"},
        max_output_tokens=120, extra_body={"seed": 3, "stop": ["days"]},
    )  # fmt: skip
    (item,) = response.output
    assert item.type == "function_call"
    assert (response.status, item.status, item.arguments) == ("incomplete", "incomplete", call.function.arguments)


def named(**members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "a"} | members}


EAN = {"properties": {"b": {"format": "ean"}}}
SCHEMA_PATH = "response_format.json_schema.schema"
LISTED = {"id": "1"} | named(arguments="[]")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tools": [named(name="a b")]}, "tools[0].function.name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
        ({"tools": [TOOLS[0], {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [named(parameters={"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [named(parameters=EAN)], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "another"}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": EAN}}}, SCHEMA_PATH),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [LISTED]}]}, "messages[0].tool_calls[0].function.arguments"),
    ],
)
async def test_what_is_wrong_with_tools_is_named(
    client: openai.AsyncOpenAI, members: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**ASKED | members)
    assert caught.value.param == param
