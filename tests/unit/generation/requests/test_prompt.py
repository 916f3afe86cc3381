"""Prompts as tokens: which field of the request an error names."""

from pathlib import Path
from typing import Any

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.requests.prompt import PromptReader, chat_turns
from services.runtime.errors import InvalidArgument
from tests.fakes.tiny_model import tiny_tokenizer

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


@pytest.mark.parametrize("role", ["", "user<|end|>", "system\nYou", "a b", "x" * 65])
def test_a_role_is_a_word(role: str) -> None:
    with pytest.raises(InvalidArgument, match=r"messages.messages\[0\].role"):
        chat_turns([pb.Message(role=role, content="a")])
