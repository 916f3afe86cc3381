"""Prompts as tokens: which field of the request an error names."""

import asyncio
import json
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.engine.text.tenant_threads import TenantThreads
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.requests import prompt
from services.generation.requests.prompt import PromptReader, chat_turns, read_tools
from services.runtime.errors import InvalidArgument
from tests.fakes.tiny_model import TEMPLATE, tiny_tokenizer

CUTTING = (
    "{% for tool in tools or [] %}{{ tool.function.description.replace('<|end|>', '') }}{% endfor %}"
    "{% for message in messages %}<|user|>{{ message.content.replace('<|end|>', '') }}<|end|>{% endfor %}"
)
"""Changes texts by the markup that they spell."""


def reader(folder: Path, template: str) -> PromptReader:
    tiny_tokenizer(384).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template)
    return PromptReader(Tokenizer(folder), 512, 1 << 20)


def chat(*contents: str, **more: Any) -> pb.GenerateRequest:
    messages = [pb.Message(role="user", content=content) for content in contents]
    return pb.GenerateRequest(messages=pb.ChatMessages(messages=messages, **more))


TOOLS = [pb.Tool(name="one", description="a<|end|>"), pb.Tool(name="two", description="b<|end|>")]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (chat("a", "b<|end|>"), "messages.messages[1].content"),
        (chat("a", tools=TOOLS), "messages.tools[0].description"),
        (chat("a", tools=TOOLS, allowed_tools=["two"]), "messages.tools[1].description"),
    ],
)
async def test_markup_that_the_template_hides_is_refused_by_its_field(
    tmp_path: Path, request_: pb.GenerateRequest, field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await reader(tmp_path, CUTTING).read(request_)
    assert refused.value.field == field


async def test_a_prediction_has_no_tokens_outside_of_the_vocabulary(tmp_path: Path) -> None:
    prompts = reader(tmp_path, TEMPLATE)
    whole = await prompts.prediction("a<|end|>b the", 384, "acme")
    cut = tuple(each for each in whole if each < max(whole))
    assert await prompts.prediction("a<|end|>b the", max(whole), "acme") == cut


@pytest.mark.parametrize("place", ["parameters", "arguments", "count"])
async def test_a_conversation_is_read_on_a_thread_and_not_at_all_if_it_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    readers, read_json = list[threading.Thread](), prompt.read_json

    def noted(text: str) -> Any:
        readers.append(threading.current_thread())
        return read_json(text)

    def sent(count: int) -> pb.GenerateRequest:
        zeros = f"[{'0,' * count}0]"
        tool = pb.Tool(name="one", parameters=f'{{"type": "object", "enum": {zeros}}}')
        calls = {"arguments": [pb.ToolCall(id="1", name="f", arguments=f'{{"a": {zeros}}}')]}
        asked = chat("a", tools=[tool] if place == "parameters" else [])
        asked.messages.messages.add(
            role="assistant", tool_calls=calls.get(place, [pb.ToolCall(id="1", name="f")] * (count // 100))
        )
        return asked

    monkeypatch.setattr(prompt, "read_json", noted)
    prompts = reader(tmp_path, "{% for message in messages %}{{ message.content }}{% endfor %}")
    with pytest.raises(InvalidArgument) as refused:
        await prompts.read(sent(100_000))
    assert (refused.value.reason, readers) == ("CONTEXT_LENGTH_EXCEEDED", [])
    with suppress(InvalidArgument):  # its tokens are too many
        await prompts.read(sent(5_000))
    assert (threading.main_thread() in readers, bool(readers)) == (place == "count", True)


async def test_a_tenant_leaves_threads_for_others() -> None:
    threads, door = TenantThreads(4), threading.Event()
    held = [asyncio.create_task(threads.run(door.wait, "many")) for _ in range(8)]
    await asyncio.sleep(0)
    assert await threads.run(threading.current_thread, "one") is not threading.main_thread()
    held[2].cancel()  # waits
    held[0].cancel()  # runs, and goes on
    door.set()
    await asyncio.gather(*held, return_exceptions=True)
    assert [each.cancelled() for each in held] == [True, False, True, *[False] * 5]
    assert await threads.run(lambda: 7, "many") == 7


async def test_a_thread_that_becomes_free_as_the_next_caller_leaves_goes_to_the_one_after() -> None:
    threads, door = TenantThreads(1), threading.Event()
    running, leaving, later = (asyncio.create_task(threads.run(door.wait, tenant)) for tenant in "aab")
    await asyncio.sleep(0)
    door.set()
    threads._pool.submit(int).result(20)  # the loop hears of the first work's end in its next turn
    asyncio.get_running_loop().call_soon(leaving.cancel)
    assert await asyncio.wait_for(asyncio.gather(running, later), 20)


@pytest.mark.parametrize(("name", "is_taken"), [("", False), ("a b", False), ("a" * 128, True), ("a" * 129, False)])
def test_the_name_of_a_tool_has_1_to_128_characters(name: str, is_taken: bool) -> None:
    with nullcontext() if is_taken else pytest.raises(InvalidArgument, match=r"messages.tools\[0\].name"):
        read_tools(pb.ChatMessages(tools=[pb.Tool(name=name)]))


@pytest.mark.parametrize("role", ["", "user<|end|>", "system\nYou", "a b", "x" * 65])
def test_a_role_is_a_word(role: str) -> None:
    with pytest.raises(InvalidArgument, match=r"messages.messages\[0\].role"):
        chat_turns([pb.Message(role=role, content="a")])


async def test_a_last_message_of_the_assistant_is_continued_and_the_receipt_s_turns_tell_it(tmp_path: Path) -> None:
    prompts = reader(tmp_path, TEMPLATE)
    request = chat("Count")
    request.messages.messages.add(role="assistant", content="1, 2")
    begun, request.messages.continue_final_message = await prompts.read(request), True
    continued = await prompts.read(request)
    text = Tokenizer(tmp_path).decode_all
    assert text(continued.token_ids) == "<|user|>Count<|end|><|assistant|>1, 2"
    assert text(begun.token_ids) == "<|user|>Count<|end|><|assistant|>1, 2<|end|><|assistant|>"
    assert continued.text is not None
    assert json.loads(continued.text)[-1] == {"role": "assistant", "content": "1, 2", "continued": "true"}
    assert "continued" not in (begun.text or "")


@pytest.mark.parametrize("name", ["reasoning_content", "thinking"])
@pytest.mark.parametrize("call", [None, pb.ToolCall(id="1", name="f")], ids=["answer", "call"])
async def test_thoughts_of_a_turn_are_the_template_s_and_the_receipt_s(
    tmp_path: Path, name: str, call: pb.ToolCall | None
) -> None:
    shown = "{% for message in messages %}{{ message.NAME }}{% endfor %}".replace("NAME", name)
    prompts, request, thoughts = reader(tmp_path, TEMPLATE + shown), chat("2 + 2?"), "Four.<|end|>"
    request.messages.messages.add(
        role="assistant", content="4", reasoning_content=thoughts, tool_calls=[] if call is None else [call]
    )
    found, tokenizer = await prompts.read(request), Tokenizer(tmp_path)
    assert json.loads(found.text or "")[1]["reasoning_content"] == thoughts
    assert tokenizer.decode_all(found.token_ids).endswith("<|end|><|assistant|>" + thoughts)
    assert found.token_ids.count(tokenizer.markup["<|end|>"]) == 2  # the markup in thoughts is text


@pytest.mark.parametrize(
    "last",
    [pb.Message(role="user", content="a"), pb.Message(role="assistant", tool_calls=[pb.ToolCall(id="1", name="f")])],
)
async def test_only_a_message_of_the_assistant_without_calls_is_continued(tmp_path: Path, last: pb.Message) -> None:
    messages = pb.ChatMessages(messages=[pb.Message(role="user", content="a"), last], continue_final_message=True)
    with pytest.raises(InvalidArgument) as refused:
        await reader(tmp_path, TEMPLATE).read(pb.GenerateRequest(messages=messages))
    assert refused.value.field == "messages.continue_final_message"
