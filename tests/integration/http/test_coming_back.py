"""Answers come back with the next question as OpenAI's and Anthropic's packages hold them: objects, dumps, streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

import openai
import pydantic
import pytest
from transformers import PreTrainedTokenizerFast

from tests.fakes.grammars import HERMES
from tests.fakes.tampered_targets import Loader, ScriptedTarget
from tests.fakes.tiny_model import END
from tests.integration.generation.deployment import Deployment

if TYPE_CHECKING:
    import anthropic

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT_TEMPLATE = HERMES + "{# <think></think> #}"
TARGET = ScriptedTarget
NAMES = ("get_time", "get_zone")
CALLS = "\n".join(f'<tool_call>\n{{"name": "{name}", "arguments": {{"zone": "UTC"}}}}\n</tool_call>' for name in NAMES)
OUTPUTS = {
    "calls": CALLS,
    "thoughts, text, calls": "<think>\nHm.\n</think>\n\nLet me see.\n" + CALLS,
    "an object": '{"zone": "UTC"}',
}
TURN: dict[str, Any] = {"role": "user", "content": "Time?"}


class Zone(pydantic.BaseModel):
    """The arguments of the tools, and the form of the answer beside them."""

    model_config = pydantic.ConfigDict(extra="forbid")
    zone: Literal["UTC", "CET"]


@pytest.fixture(params=OUTPUTS)
def output(request: pytest.FixtureRequest, loader: Loader, deployment: Deployment) -> str:
    """An output that the model gives after a prompt of the length given to `behind`, and none after a longer prompt."""
    says(loader, deployment, OUTPUTS[request.param])
    return OUTPUTS[request.param]


def says(loader: Loader, deployment: Deployment, text: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(deployment.model / "tokenizer.json"))
    assert isinstance(loader.target, ScriptedTarget)
    loader.target.script = tokenizer.encode(text + END, add_special_tokens=False)


def behind(loader: Loader, prompt: int) -> None:
    assert isinstance(loader.target, ScriptedTarget)
    loader.target.prompt = prompt


def told(output: str) -> list[dict[str, Any]]:
    """The arguments of an output's calls."""
    return [{"zone": "UTC"}] * output.count("<tool_call>")


def is_formed(output: str) -> bool:
    """Whether it keeps to a form beside tools: it is calls, or an object."""
    return output.startswith(("{", "<tool_call>"))


def dumped(value: Any) -> dict[str, Any]:
    """Without pydantic's warnings about members that a package sets against its own types."""
    return dict(value) if isinstance(value, dict) else value.model_dump(warnings=False)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of openai's own stream, about its `parsed`
async def test_chats(client: openai.AsyncOpenAI, loader: Loader, output: str) -> None:
    tools = [openai.pydantic_function_tool(Zone, name=name) for name in NAMES]
    asked: dict[str, Any] = {"model": "tiny", "messages": [TURN], "tools": tools, "temperature": 0, "max_tokens": 200}
    formed = asked | {"response_format": Zone} if is_formed(output) else asked
    chats: Any = client.chat.completions
    counted = (await chats.create(**asked | {"max_tokens": 1})).usage.prompt_tokens
    behind(loader, counted)

    async def forms() -> AsyncIterator[Any]:
        created = (await chats.create(**asked)).choices[0].message
        parsed = (await chats.parse(**formed)).choices[0].message
        async with chats.stream(**formed) as stream:
            async for _ in stream:
                snapshot = stream.current_completion_snapshot.choices[0].message
            final = (await stream.get_final_completion()).choices[0].message
        for message in (created, parsed, snapshot, final):
            yield message
            yield dumped(message)
        content, calls = "", list[Any]()
        async for chunk in await chats.create(**asked, stream=True):
            delta = chunk.choices[0].delta
            content += delta.content or ""
            for call in delta.tool_calls or ():
                if call.id:
                    calls.append(call)
                else:
                    calls[call.index].function.arguments += call.function.arguments
        joined = {"role": "assistant", "content": content, "function_call": None}
        yield joined | ({"tool_calls": calls} if calls else {})
        yield joined | {"tool_calls": [dumped(call) for call in calls] or None}

    prompts = set()
    async for message in forms():
        calls = [dumped(call) for call in dumped(message).get("tool_calls") or ()]
        assert [json.loads(call["function"]["arguments"]) for call in calls] == told(output)
        results = [{"role": "tool", "content": "noon", "tool_call_id": call["id"]} for call in calls]
        again = await chats.create(**asked | {"messages": [TURN, message, *results, TURN]})
        prompts.add(again.usage.prompt_tokens)
    assert len(prompts) == 1
    assert prompts.pop() > counted


async def test_responses(client: openai.AsyncOpenAI, loader: Loader, output: str) -> None:
    schema = openai.pydantic_function_tool(Zone)["function"]["parameters"]
    tools: Any = [
        {"type": "function", "name": name, "parameters": schema, "strict": True, "defer_loading": False, "async": False}
        for name in NAMES
    ]
    asked: dict[str, Any] = {"model": "tiny", "input": [TURN], "tools": tools, "temperature": 0}
    asked["max_output_tokens"] = 200
    formed = asked | {"text_format": Zone} if is_formed(output) else asked
    responses: Any = client.responses
    counted = (await responses.create(**asked | {"max_output_tokens": 1})).usage.input_tokens
    behind(loader, counted)

    async def forms() -> AsyncIterator[list[Any]]:
        created, parsed = await responses.create(**asked), await responses.parse(**formed)
        async with responses.stream(**formed) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        done = [
            event.item
            async for event in await responses.create(**asked, stream=True)
            if event.type == "response.output_item.done"
        ]
        for items in (created.output, parsed.output, final.output, done):
            yield items
            yield [dumped(item) for item in items]
        yield json.loads(final.model_dump_json(warnings=False))["output"]

    prompts = set()
    async for items in forms():
        calls = [call for call in map(dumped, items) if call["type"] == "function_call"]
        assert [json.loads(call["arguments"]) for call in calls] == told(output)
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "noon", "name": call["name"]}
            for call in calls
        ]
        again = await responses.create(**asked | {"input": [TURN, *items, *results, TURN]})
        prompts.add(again.usage.input_tokens)
    assert len(prompts) == 1
    assert prompts.pop() > counted


async def test_messages(claude: anthropic.AsyncAnthropic, loader: Loader, output: str) -> None:
    tools = [
        {
            "name": name,
            "input_schema": openai.pydantic_function_tool(Zone)["function"]["parameters"],
            "strict": True,
            "defer_loading": False,
            "allowed_callers": ["direct"],
            "input_examples": [],
        }
        for name in NAMES
    ]
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 200, "messages": [TURN], "tools": tools}
    asked |= {"thinking": {"type": "adaptive"}, "extra_body": {"temperature": 0, "speed": "standard"}}
    formed = asked | {"output_format": Zone} if is_formed(output) else asked
    messages: Any = claude.messages
    counted = (await messages.count_tokens(model="tiny", messages=[TURN], tools=tools)).input_tokens
    behind(loader, counted)

    async def forms() -> AsyncIterator[Any]:
        created, parsed = await messages.create(**asked), await messages.parse(**formed)
        async with messages.stream(**formed) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_message()
        beta: Any = await claude.beta.messages.create(**asked)
        for message in (created, parsed, final, beta):
            yield message.content
            yield [dumped(block) for block in message.content]
            yield json.loads(message.model_dump_json(warnings=False))
            yield message

    prompts = set()
    async for form in forms():
        answer = {"role": "assistant", "content": form} if isinstance(form, list) else form
        calls = [block for block in map(dumped, dumped(answer)["content"]) if block["type"] == "tool_use"]
        assert [call["input"] for call in calls] == told(output)
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "noon"} for call in calls]
        turns = [TURN, answer, {"role": "user", "content": [*results, {"type": "text", "text": "So?"}]}]
        again = await messages.create(**asked | {"messages": turns})
        prompts.add(again.usage.input_tokens + again.usage.cache_read_input_tokens)
    assert len(prompts) == 1
    assert prompts.pop() > counted


async def test_a_tool_runner_goes_on_with_the_whole_conversation(
    claude: anthropic.AsyncAnthropic, loader: Loader, deployment: Deployment
) -> None:
    from anthropic import beta_async_tool

    zones: list[str] = []

    @beta_async_tool
    async def get_zone(zone: str) -> str:
        """Tells the time of a zone."""
        zones.append(zone)
        return "noon"

    asked: Any = {"model": "tiny", "max_tokens": 200, "messages": [TURN], "extra_body": {"temperature": 0}}
    call = f"<tool_call>{CALLS.partition('<tool_call>')[2].partition('<tool_call>')[2]}"
    says(loader, deployment, call)
    counted: Any = await claude.messages.count_tokens(
        model="tiny", messages=asked["messages"], tools=[get_zone.to_dict()]
    )
    behind(loader, counted.input_tokens)
    messages = [message async for message in claude.beta.messages.tool_runner(**asked, tools=[get_zone])]
    assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
    assert zones == ["UTC"]


@pytest.mark.parametrize(("begun", "thoughts"), [("<think>\nThe user", "greets me."), ("<think>\nHm.\n</think>\n", "")])
async def test_a_turn_continues_within_the_thought_that_it_has_begun(
    client: openai.AsyncOpenAI, loader: Loader, deployment: Deployment, begun: str, thoughts: str
) -> None:
    says(loader, deployment, (f" {thoughts}\n</think>\n\n" if thoughts else "") + "Hello!")
    turns = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": begun}]
    asked: dict[str, Any] = {"model": "tiny", "messages": turns, "temperature": 0}
    asked["extra_body"] = {"continue_final_message": True}
    chats: Any = client.chat.completions
    behind(loader, (await chats.create(**asked, max_tokens=1)).usage.prompt_tokens)
    message = (await chats.create(**asked)).choices[0].message
    assert (getattr(message, "reasoning_content", None) or "", message.content) == (thoughts, "Hello!")
