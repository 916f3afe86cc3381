"""gpt-oss's channels: its tokens through engine, receipts and front, as thoughts and answers."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from transformers import PreTrainedTokenizerFast

from tests.fakes.tampered_targets import Loader, ScriptedTarget
from tests.fakes.tiny_families import FAMILIES
from tests.fakes.tiny_model import make_tiny_model
from tests.integration.generation.deployment import Deployment
from tests.integration.http.front import Front

pytestmark = pytest.mark.asyncio(loop_scope="module")

TARGET = ScriptedTarget
SPECIAL = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|return|>", "<|call|>")
CHAT_TEMPLATE = """{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif -%}
{%- for each in messages -%}
{%- if each.role == "assistant" -%}
{%- if each.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ each.thinking }}<|end|>{% endif -%}
<|start|>assistant<|channel|>final<|message|>{{ each.content }}<|end|>
{%- else -%}<|start|>{{ each.role }}<|message|>{{ each.content }}<|end|>{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt %}<|start|>assistant{% endif -%}"""
THOUGHT = "<|channel|>analysis<|message|>An assistant adds: 2 + 2.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>It is 4.<|return|>"
ADDS = "An assistant adds: 2 + 2."
CALL = '<|channel|>commentary json<|message|>{"a": 1}<|call|>'
NATURAL = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"a": 1}<|call|>'
CHANNEL_FIRST = ' to=functions.look <|constrain|>json<|message|>{"a": 1}<|call|>'
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random one, whose tokenizer has the special tokens in the place of others."""
    folder = make_tiny_model(tmp_path_factory.mktemp("gpt-oss"), vocab=600, **FAMILIES["gpt_oss"])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    extra = [each for each in tokenizer["added_tokens"] if each["content"].startswith("<extra")]
    for token, content in zip(extra, SPECIAL, strict=False):
        token.update(content=content, special=True)
    ids = {token["content"]: token["id"] for token in extra}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|return|>"})
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    ends = {"eos_token_id": [ids["<|return|>"], ids["<|call|>"]]}
    for name in ("config.json", "generation_config.json"):
        known = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(known | ends))
    return folder


def tools(strict: bool, choice: str = "auto") -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": TOOL | {"strict": strict}}], "tool_choice": choice}


@pytest.mark.parametrize(
    ("members", "output", "thought", "answer", "arguments"),
    [
        ({}, THOUGHT + FINAL, ADDS, "It is 4.", None),
        ({}, FINAL, "", "It is 4.", None),
        (tools(False), THOUGHT + FINAL, ADDS, "It is 4.", None),
        (tools(False), THOUGHT + NATURAL, ADDS, "", '{"a": 1}'),
        (tools(True), THOUGHT + FINAL, ADDS, "It is 4.", None),
        (tools(True), THOUGHT + NATURAL, ADDS, "", '{"a": 1}'),
        (tools(True), THOUGHT + " to=functions.look" + CALL, ADDS, "", '{"a": 1}'),
        (tools(False, "required"), " to=functions.look" + CALL, "", "", '{"a": 1}'),
        (tools(False, "required"), CHANNEL_FIRST, "", "", '{"a": 1}'),
        (tools(False) | {"response_format": {"type": "json_object"}}, CHANNEL_FIRST, "", "", '{"a": 1}'),
    ],
)
async def test_channels_are_thoughts_answers_and_calls(
    deployment: Deployment,
    front: Front,
    loader: Loader,
    members: dict[str, Any],
    output: str,
    thought: str,
    answer: str,
    arguments: str | None,
) -> None:
    target, asked = loader.target, {"messages": [{"role": "user", "content": "2 + 2?"}]}
    assert isinstance(target, ScriptedTarget)
    async with httpx2.AsyncClient(trust_env=False) as http:
        shown = {name: value for name, value in members.items() if name == "tools"}
        counted = await http.post(f"http://127.0.0.1:{front.port}/tokenize", json=asked | shown)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(deployment.model / "tokenizer.json"))
    target.prompt, target.script = counted.json()["count"], tokenizer.encode(output, add_special_tokens=False)
    create: Any = partial(
        front.client.chat.completions.create, model="tiny", temperature=0, max_tokens=99, **asked, **members
    )
    whole = await create()
    deltas = [each.choices[0].delta async for each in await create(stream=True)]
    message = whole.choices[0].message
    assert (getattr(message, "reasoning_content", None) or "", message.content or "") == (thought, answer)
    assert [call.function.arguments for call in message.tool_calls or ()] == ([] if arguments is None else [arguments])
    reason = "stop" if arguments is None else "tool_calls"
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == (reason, len(target.script))
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == thought
    assert "".join(delta.content or "" for delta in deltas) == answer
    called = [call.function.arguments or "" for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(called) == (arguments or "")
