"""How a model calls tools is learned from its chat template; other templates get plain turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.engine.text.tool_calls import PLAIN, ToolCallSyntax
from tests.fakes.tiny_model import TEMPLATE, tiny_tokenizer
from tests.fakes.tool_templates import HERMES, LLAMA, MISTRAL, XML

TOOL = {"type": "function", "function": {"name": "get_time", "description": "", "parameters": {"type": "object"}}}
TURNS = [
    {"role": "user", "content": "When?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "get_time", "arguments": {"zone": "UTC"}}}
        ],
    },
    {"role": "tool", "content": "noon", "tool_call_id": "call00001"},
    {"role": "tool", "content": "or later", "tool_call_id": "call00001"},
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(384).save_pretrained(folder)
    return folder


def tokenizer(saved: Path, template: str) -> Tokenizer:
    (saved / "chat_template.jinja").write_text(template)
    return Tokenizer(saved)


@pytest.mark.parametrize(
    ("template", "syntax"),
    [
        (HERMES, PLAIN),
        (LLAMA, ToolCallSyntax('{"name": "', '", "parameters": ', None, "}")),
        (MISTRAL, ToolCallSyntax('<|pad|>[{"name": "', '", "arguments": ', '}, {"name": "', "}]")),
        (XML, PLAIN),
        (TEMPLATE, PLAIN),
    ],
    ids=["hermes", "llama", "mistral", "xml", "none"],
)
def test_the_syntax_is_the_template_s_where_it_writes_json(saved: Path, template: str, syntax: ToolCallSyntax) -> None:
    learned = tokenizer(saved, template)
    assert learned.tool_calls == syntax
    assert learned.tool_calls.without(learned.special_texts).open == syntax.open.removeprefix("<|pad|>")


def test_a_template_that_knows_tools_lays_them_out_itself(saved: Path) -> None:
    read = tokenizer(saved, HERMES)
    text = read.decode_all(read.encode_chat(TURNS, [TOOL]))
    called = '<|assistant|><tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call><|end|>'
    assert text.startswith(f"<|user|>get_time\n<|end|><|user|>When?<|end|>{called}<|user|><tool_response>\nnoon\n")


@pytest.mark.parametrize("template", [TEMPLATE, XML], ids=["none", "xml"])
def test_for_other_templates_tools_calls_and_results_are_text_of_system_user_and_assistant(
    saved: Path, template: str
) -> None:
    read = tokenizer(saved, template)
    text = read.decode_all(read.encode_chat(TURNS, [TOOL]))
    assert '<tools>\n{"type": "function", "function": {"name": "get_time"' in text
    assert text.index("</tools>") < text.index("When?<|end|>")
    assert '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call><|end|>' in text
    results = "<tool_response>\nnoon\n</tool_response>\n<tool_response>\nor later\n</tool_response><|end|><|assistant|>"
    assert text.endswith("<|user|>" + results)


def test_without_tools_and_calls_a_conversation_is_as_ever(saved: Path) -> None:
    read = tokenizer(saved, TEMPLATE)
    assert read.decode_all(read.encode_chat(TURNS[:1])) == "<|user|>When?<|end|><|assistant|>"
