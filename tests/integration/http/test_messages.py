"""Anthropic's Messages API by Anthropic's own client: whole and as events, tools, errors, receipts."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import jsonschema
import openai
import pytest
from msgspec.structs import replace

from ledger.bundle.receipt_file import ReceiptFile
from ledger.documents.receipt import Receipt, ThoughtsPart
from services.auditor.examination import EnginePlan, Judge
from services.auditor.own_engine import OwnEngine
from tests.fakes.grammars import HERMES
from tests.integration.generation.deployment import Deployment

if TYPE_CHECKING:
    import anthropic

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT_TEMPLATE = HERMES + "{# <think></think> #}"
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TEXT = {"type": "text", "text": "Sun?", "cache_control": {"type": "ephemeral"}}
ASKED: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 60,
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": [TEXT]}],
}
CALLING: dict[str, Any] = ASKED | {
    "max_tokens": 200,
    "tools": [{"name": "get_weather", "description": "Weather", "input_schema": WEATHER}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}


async def test_a_message_says_what_a_chat_says(claude: anthropic.AsyncAnthropic, client: openai.AsyncOpenAI) -> None:
    answer = await claude.messages.create(**ASKED, system="Be short.")
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Sun?"}]
    chat = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=60, temperature=0)
    assert answer.content[0].text == chat.choices[0].message.content
    assert (answer.role, answer.type, answer.model) == ("assistant", "message", "tiny")
    assert answer.stop_reason == {"stop": "end_turn", "length": "max_tokens"}[chat.choices[0].finish_reason]
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == chat.usage.prompt_tokens
    assert usage.output_tokens == chat.usage.completion_tokens
    assert (answer.kolm["ai_generated"], bool(answer.kolm["receipts"][0]["receipt_id"])) == (True, True)
    counted = await claude.messages.count_tokens(model="tiny", messages=ASKED["messages"], system="Be short.")
    assert counted.input_tokens == chat.usage.prompt_tokens


async def test_a_last_turn_of_the_assistant_is_continued(
    claude: anthropic.AsyncAnthropic, client: openai.AsyncOpenAI
) -> None:
    turns = [*ASKED["messages"], {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]
    answer = await claude.messages.create(**ASKED | {"messages": turns})
    prompt = "<|user|>Sun?<|end|><|assistant|>It is"
    text = await client.completions.create(model="tiny", prompt=prompt, max_tokens=60, temperature=0)
    assert answer.content[0].text == text.choices[0].text
    counted = await claude.messages.count_tokens(model="tiny", messages=turns)
    assert counted.input_tokens == text.usage.prompt_tokens


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("It is ", ".content"),
        ("It is\n", ".content"),
        ([{"type": "text", "text": "It is "}], ".content[0].text"),
        ([{"type": "tool_use", "id": "call00001", "name": "get_weather", "input": {}}], ""),
    ],
    ids=["a blank", "a newline", "a blank in a block", "a call"],
)
async def test_a_turn_that_cannot_be_continued_is_refused(
    claude: anthropic.AsyncAnthropic, content: Any, part: str
) -> None:
    import anthropic

    turns = [*ASKED["messages"], {"role": "assistant", "content": content}]
    with pytest.raises(anthropic.BadRequestError) as refused:
        await claude.messages.create(**ASKED | {"messages": turns})
    assert refused.value.body["error"]["param"] == f"messages[{len(ASKED['messages'])}]{part}"


async def test_events_add_up_to_the_whole_message(claude: anthropic.AsyncAnthropic) -> None:
    whole = await claude.messages.create(**ASKED)
    async with claude.messages.stream(**ASKED) as stream:
        kinds = [each.type async for each in stream]
        streamed = await stream.get_final_message()
    assert streamed.content[0].text == whole.content[0].text
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert {"content_block_start", "content_block_delta", "content_block_stop", "message_delta"} <= set(kinds)


async def test_a_call_is_made_streamed_and_answered(claude: anthropic.AsyncAnthropic) -> None:
    whole = await claude.messages.create(**CALLING)
    (call,) = (block for block in whole.content if block.type == "tool_use")
    jsonschema.validate(call.input, WEATHER)
    assert (whole.stop_reason, call.name) == ("tool_use", "get_weather")
    async with claude.messages.stream(**CALLING) as stream:
        partial = "".join([each.partial_json async for each in stream if each.type == "input_json"])
        streamed = await stream.get_final_message()
    assert json.loads(partial) == call.input == streamed.content[-1].input
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}]
    turns = [*ASKED["messages"], {"role": "assistant", "content": whole.content}]
    turns += [{"role": "user", "content": [*results, {"type": "text", "text": "So?"}]}]
    again = await claude.messages.create(**CALLING | {"messages": turns, "tool_choice": {"type": "none"}})
    assert again.content[0].type == "text"


async def test_thoughts_stand_apart_from_the_answer(
    claude: anthropic.AsyncAnthropic, client: openai.AsyncOpenAI
) -> None:
    held = {"structured_outputs": {"regex": "<think>(see|look)</think>(yes|no)"}}
    asked = ASKED | {"extra_body": {"temperature": 0, **held}}
    thought, text = (await claude.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 1024})).content
    assert (thought.type, text.type) == ("thinking", "text")
    assert thought.thinking in {"see", "look"}
    assert text.text in {"yes", "no"}
    (alone,) = (await claude.messages.create(**asked)).content
    assert alone.text == text.text
    async with claude.messages.stream(**asked, thinking={"type": "adaptive"}) as stream:
        assert (await stream.get_final_message()).content[0].thinking == thought.thinking
    chatted: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Sun?"}], "temperature": 0}
    message = (await client.chat.completions.create(**chatted, extra_body=held)).choices[0].message
    assert (message.reasoning_content, message.content) == (thought.thinking, text.text)
    deltas = [
        each.choices[0].delta
        async for each in await client.chat.completions.create(**chatted, stream=True, extra_body=held)
    ]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == thought.thinking


async def test_stop_strings_count_behind_the_thoughts_also_in_a_replay(
    client: openai.AsyncOpenAI, deployment: Deployment
) -> None:
    held = {"regex": "<think>\n(so|no): [ab]\n\n</think>\n\n(yes|no): [ab]"}
    whole = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Sun?"}],
        temperature=0,
        stop=[": ", "\n\n"],
        extra_body={"structured_outputs": held, "kolm": {"receipt_files": True, "verify": "inline"}},
    )
    (choice,), (receipt,) = whole.choices, whole.kolm["receipts"]
    assert (choice.finish_reason, choice.message.content in {"yes", "no"}) == ("stop", True)
    assert ": " in choice.message.reasoning_content
    file = ReceiptFile.from_bytes(receipt["file"].encode())
    document = file.receipt()
    assert document.sampling.thoughts == ThoughtsPart("<think>", ("</think>",), begun=False)
    assert document.output.stop_reason == ": "

    def judged(judged: Receipt) -> str:
        own = OwnEngine.load(EnginePlan(deployment.model), threading.Event())
        return Judge(own, 1.0).judge(judged, file.content).outcome

    assert await asyncio.to_thread(judged, document) == "EXACT"
    for part, outcome in (
        (None, "DEVIATION"),
        (ThoughtsPart("<think>", ("yes", "no"), begun=False), "UNREPLAYABLE"),
        (ThoughtsPart("<think>", ("</think>",), begun=True), "UNREPLAYABLE"),
    ):
        other = replace(document, sampling=replace(document.sampling, thoughts=part))
        assert await asyncio.to_thread(judged, other) == outcome


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"container": "c1"}, "container"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
        ({"nothing": 1}, "nothing"),
        ({"tool_choice": {"type": "tool", "name": "none"}}, "tool_choice"),
    ],
)
async def test_what_is_not_supported_is_refused_by_its_field_in_anthropics_shape(
    claude: anthropic.AsyncAnthropic, change: Any, param: str
) -> None:
    from anthropic import BadRequestError

    with pytest.raises(BadRequestError) as refused:
        await claude.messages.create(**ASKED | {"extra_body": {"temperature": 0, **change}})
    body: Any = refused.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert str(body["error"]["param"]).startswith(param)


async def test_what_coding_agents_always_send_is_taken(claude: anthropic.AsyncAnthropic) -> None:
    sent = {
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "x"},
        "temperature": 0,
    }
    answer, plain = [
        await claude.messages.create(**ASKED | {"extra_body": body}) for body in (sent, {"temperature": 0})
    ]
    assert answer.content == plain.content
