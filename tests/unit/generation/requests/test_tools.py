"""The grammar of tools beside a constraint: calls, or what the constraint allows, in every family's syntax."""

from __future__ import annotations

import json

import pytest

from kolm.generation.v1 import generation_pb2 as pb
from services.generation.engine.request import StructuredOutputs
from services.generation.engine.text.tool_calls import PLAIN, ToolCallSyntax
from services.generation.requests.prompt import Tools, chat_turns, read_tools
from services.runtime.errors import InvalidArgument
from tests.fakes.grammars import CONSTRAINTS, compiler, encoded

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LLAMA = ToolCallSyntax('{"name": "', '", "parameters": ', None, "}")
NATION = {"type": "object", "properties": {"nation": {"type": "string"}}, "required": ["nation"]}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TEXTS = ("the ledger 2026", "signed and sent", "1+20", "((guess))", '{"nation": 3}')


def tools(*, required: bool = False, strict: bool = True) -> Tools:
    told = [pb.Tool(name=name, parameters=json.dumps(CITY), strict=strict) for name in ("get", "get_all")]
    choice = pb.TOOL_CHOICE_REQUIRED if required else pb.TOOL_CHOICE_AUTO
    read = read_tools(pb.ChatMessages(tools=told, tool_choice=choice))
    assert read is not None
    return read


def allows(grammar: str, output: str) -> bool:
    matcher, tokens = compiler().compile(StructuredOutputs("grammar", grammar)).matcher(), encoded(output)
    return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("syntax", [PLAIN, LLAMA])
@pytest.mark.parametrize("schema", [NATION, NAME])
def test_an_answer_is_calls_or_json_that_begins_like_one(syntax: ToolCallSyntax, schema: dict[str, object]) -> None:
    """llguidance's lexer takes the longest symbol: calls and schemas have to be made of the same ones."""
    grammar = tools().grammar(syntax, {}, StructuredOutputs("json", json.dumps(schema)))
    (member,) = schema["properties"]  # type: ignore[misc]
    assert allows(grammar, json.dumps({member: "get"}))
    assert allows(grammar, syntax.written([("get", '{"city": "Bern"}')]))
    assert allows(grammar, syntax.written([("get_all", '{"city": "Bern"}')]))
    assert not allows(grammar, "Hello.")
    assert not allows(grammar, "Hello." + syntax.written([("get", '{"city": "Bern"}')]))


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_any_constraint_stands_beside_tools(constraint: StructuredOutputs) -> None:
    grammar, alone = tools(strict=False).grammar(PLAIN, {}, constraint), compiler().compile(constraint)
    assert allows(grammar, PLAIN.written([("get", '{"town": 1}'), ("get_all", "{}")]))
    for text in TEXTS:
        matcher, tokens = alone.matcher(), encoded(text)
        fits = matcher.validate_tokens(tokens) == len(tokens)
        fits = fits and matcher.consume_tokens(tokens) and matcher.is_accepting()
        assert allows(grammar, text) == fits


def test_required_calls_leave_no_text_and_free_ones_any() -> None:
    call, held = PLAIN.written([("get", '{"city": "Bern"}')]), StructuredOutputs("choice", '["no"]')
    required = tools(required=True).grammar(PLAIN, {}, held)
    assert (allows(required, call), allows(required, "no")) == (True, False)
    free = tools().grammar(PLAIN, {})
    assert (allows(free, "Let me see. " + call), allows(free, "no")) == (True, True)
    assert not allows(free, PLAIN.written([("get", '{"town": 1}')]))


@pytest.mark.parametrize(
    "odd",
    [r'"\ud800"', "NaN", "-1e999", "9" * 400, "[" * 5000 + "]" * 5000],
    ids=["half", "NaN", "inf", "long", "deep"],
)
def test_what_only_python_reads_as_json_is_refused_by_its_field(odd: str) -> None:
    tool = pb.Tool(name="get", parameters=f'{{"type": "object", "default": {odd}}}')
    with pytest.raises(InvalidArgument, match=r"messages.tools\[0\].parameters: is not JSON"):
        read_tools(pb.ChatMessages(tools=[tool]))
    call = pb.ToolCall(id="1", name="get", arguments=f'{{"a": {odd}}}')
    with pytest.raises(InvalidArgument, match=r"messages.messages\[0\].tool_calls\[0\].arguments"):
        chat_turns([pb.Message(role="assistant", tool_calls=[call])])
