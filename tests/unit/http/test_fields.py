"""Members of bodies: neutral values are taken, others are refused by the path of the member."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from services.client.errors import FieldViolation, InvalidArgument, NotFound
from services.http.api_error import of_body, of_kolm
from services.http.completions import ChatDialect, ChatFields, TextFields
from services.http.message_answer import MessageDialect
from services.http.message_fields import MessageFields, PromptFields
from services.http.response_answer import ResponseDialect
from services.http.response_fields import ResponseFields

TURN = {"role": "user", "content": "x"}
TEXT = {"type": "text", "text": "x"}
CALL = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
ITEM = {"type": "function_call", "call_id": "1", "name": "a", "arguments": "{}"}
USE = {"type": "tool_use", "id": "1", "name": "a", "input": {"b": None}}
FLAT = {"type": "function", "name": "a", "parameters": {"type": "object"}}
ANSWER = {"role": "tool", "content": "x", "tool_call_id": "1"}
RESULT = {"type": "tool_result", "tool_use_id": "1"}
TOOL = {"name": "a", "input_schema": {"type": "object"}}


def chat(message: Any = None, **members: Any) -> tuple[type[BaseModel], dict[str, Any]]:
    return ChatFields, {"messages": [TURN, *([message] if message else [])], **members}


def responses(item: Any = None, **members: Any) -> tuple[type[BaseModel], dict[str, Any]]:
    return ResponseFields, {"input": [TURN, *([item] if item else [])], **members}


def messages(block: Any = None, **members: Any) -> tuple[type[BaseModel], dict[str, Any]]:
    turns = [TURN, *([{"role": "assistant", "content": [block]}] if block else [])]
    return MessageFields, {"max_tokens": 1, "messages": turns, **members}


def calling(**members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [CALL | members]}


def with_arguments(arguments: Any) -> dict[str, Any]:
    return calling(function={"name": "a", "arguments": arguments})


def read(asked: tuple[type[BaseModel], dict[str, Any]]) -> Any:
    kind, body = asked
    return kind.model_validate_json(json.dumps(body))


@pytest.mark.parametrize(
    "asked",
    [
        chat(made_up=None, stream_options={"made_up": None}, kolm={"made_up": None}),
        chat(calling(index=1, made_up=None)),
        chat({"role": "assistant", "content": [{"type": "text", "text": "x", "made_up": None}], "parsed": {"a": 1}}),
        chat(with_arguments(None)),
        chat(messages=[calling(), ANSWER | {"name": "a"}, calling(function={"name": "b"}), ANSWER | {"name": "b"}]),
        (TextFields, {"prompt": "x", "made_up": None}),
        responses(ITEM | {"async": False, "async_": None, "caller": None, "namespace": None, "parsed_arguments": {}}),
        responses(ITEM | {"async_": False, "caller": {"type": "direct"}}),
        responses({"role": "assistant", "content": "x", "phase": "final_answer"}),
        responses({"role": "assistant", "content": [{"type": "output_text", "text": "x", "parsed": {"a": 1}}]}),
        responses(tools=[FLAT | {"async": False, "defer_loading": False, "allowed_callers": ["direct"]}]),
        responses(tools=[FLAT | {"allowed_callers": None, "output_schema": None}], type=None),
        messages(USE | {"toolset_name": None, "caller": {"type": "direct"}}),
        messages({"type": "redacted_thinking", "data": "abc"}),
        messages({"type": "text", "text": "x", "citations": None, "parsed_output": {"a": 1}}),
        messages(tools=[TOOL | {"defer_loading": False, "allowed_callers": ["direct"], "input_examples": []}]),
        messages(speed="standard", inference_geo=None, diagnostics=None, thread=None),
        messages(thinking={"type": "between_tools"}),
        (PromptFields, {"messages": [TURN | {"made_up": None}], "made_up": None}),
    ],
)
def test_what_asks_for_nothing_is_taken(asked: tuple[type[BaseModel], dict[str, Any]]) -> None:
    read(asked)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (chat(made_up=0), "made_up"),
        (chat(calling(made_up=False)), "messages[1].tool_calls[0].made_up"),
        (chat(calling(index="0")), "messages[1].tool_calls[0].index"),
        (
            chat({"role": "assistant", "content": [{"type": "text", "text": "x", "made_up": 1}]}),
            "messages[1].content[0]",
        ),
        (chat({"role": "user", "content": [TEXT, {"type": "text", "text": 1}]}), "messages[1].content[1].text"),
        (chat({"role": "user"}), "messages[1].content"),
        (chat({"role": "tool", "content": "x"}), "messages[1].tool_call_id"),
        (chat(calling() | {"role": "user", "content": "x"}), "messages[1].tool_calls"),
        (chat(TURN | {"reasoning_content": "y"}), "messages[1].reasoning_content"),
        (chat({"role": "tool", "content": "x", "tool_call_id": "1", "name": "b"}), "messages[1].name"),
        (chat(response_format={"type": "json_schema"}), "response_format.json_schema"),
        (chat(prediction={"type": "content", "content": [{"type": "image"}]}), "prediction.content[0]"),
        (responses({"role": "user", "content": [{"type": "input_image"}]}), "input[1].content[0]"),
        (responses(text={"format": {"type": "json_schema"}}), "text.format.schema"),
        (responses(include=["message.output_text.logprobs"], tools=[FLAT]), "include[0]"),
        (responses(structured_outputs={"regex": "a"}, text={"format": {"type": "json_object"}}), "text.format"),
        (messages(USE, messages=[{"role": "user", "content": [TEXT, USE]}]), "messages[0].content[1].type"),
        (messages(TEXT | {"text": "x "}), "messages[1].content[0].text"),
        (messages(messages=[TURN, {"role": "assistant", "content": "x\n"}]), "messages[1].content"),
        (chat(with_arguments('{"a": NaN}')), "messages[1].tool_calls[0].function.arguments"),
        (chat(with_arguments('{"a": ')), "messages[1].tool_calls[0].function.arguments"),
        (responses(ITEM | {"async": True}), "input[1].async"),
        (responses(ITEM | {"async_": True}), "input[1].async_"),
        (responses(ITEM | {"namespace": "b"}), "input[1].namespace"),
        (responses(ITEM | {"caller": {"type": "program", "caller_id": "1"}}), "input[1].caller"),
        (responses({"role": "assistant", "content": "x", "phase": "thoughts"}), "input[1].phase"),
        (responses(tools=[FLAT | {"defer_loading": True}]), "tools[0].defer_loading"),
        (responses(tools=[FLAT | {"output_schema": {}}]), "tools[0].output_schema"),
        (messages(USE | {"toolset_name": "b"}), "messages[1].content[0].toolset_name"),
        (messages(tools=[TOOL | {"input_examples": [{"a": 1}]}]), "tools[0].input_examples"),
        (messages(tools=[TOOL | {"allowed_callers": ["code_execution_20260521"]}]), "tools[0].allowed_callers"),
        (messages(speed="fast"), "speed"),
        (messages(inference_geo="eu"), "inference_geo"),
        (messages(messages=[{"role": "user", "content": ["x"]}]), "messages[0].content[0]"),
        (
            messages(messages=[{"role": "user", "content": [RESULT | {"content": ["x"]}]}]),
            "messages[0].content[0].content[0]",
        ),
        (messages(system=["x"]), "system[0]"),
        ((PromptFields, {"messages": [{"role": "user", "content": [None]}]}), "messages[0].content[0]"),
        (
            messages(
                output_config={"format": {"type": "json_schema", "schema": {}}}, structured_outputs={"regex": "a"}
            ),
            "output_config.format",
        ),
        (chat(tool_choice={"type": [1]}), "tool_choice.type"),
        (chat(logit_bias={"5": 1, "05": 2}), "logit_bias"),
    ],
)
def test_what_asks_for_something_is_refused_by_name(asked: tuple[type[BaseModel], dict[str, Any]], param: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read(asked)
    assert of_body(caught.value).param == param


@pytest.mark.parametrize("arguments", ["", " \n", None])
def test_no_arguments_are_an_empty_object(arguments: str | None) -> None:
    assert read(chat(with_arguments(arguments))).messages[1].turn().calls[0].arguments == "{}"
    assert read(responses(ITEM | {"arguments": arguments})).turns()[1].message.calls[0].arguments == "{}"


def test_a_null_within_an_input_or_a_schema_stays() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [None, 1], "default": None}}}
    fields = read(messages(USE, tools=[TOOL | {"input_schema": schema}]))
    assert json.loads(fields.turns()[1].message.calls[0].arguments) == USE["input"]
    assert fields.tools[0].input_schema == schema


def named(path: str, names: Mapping[str, str]) -> str | None:
    """The caller's name of the generation server's field."""
    return of_kolm(InvalidArgument("x", violations=(FieldViolation(path, "is wrong"),)), names).param


def test_what_the_server_finds_wrong_has_the_caller_s_name() -> None:
    asked = read(chat(calling(), tools=[{"type": "function", "function": {"name": "a"}}]))
    names = ChatDialect(asked).names
    assert of_kolm(NotFound("no head", resource="eagle_head"), names).param == "kolm.eagle_head"
    call = "messages[1].tool_calls[0]"
    for path in (f"messages.{call}.arguments", f"{call}.arguments"):
        assert named(path, names) == f"{call}.function.arguments"
    assert named(f"{call}.id", names) == f"{call}.id"
    assert named("messages.messages[0].role", names) == "messages[0].role"
    assert named("messages.tools[0].parameters", names) == "tools[0].function.parameters"

    result = {"type": "function_call_output", "call_id": "1", "output": "y"}
    items = [TURN, {"role": "assistant", "content": "x"}, ITEM, ITEM | {"call_id": "2"}, result]
    names = ResponseDialect(read((ResponseFields, {"input": items, "instructions": "z"}))).names
    assert named("messages.messages[2].tool_calls[1].arguments", names) == "input[3].arguments"
    assert named("messages[2].tool_calls[0].id", names) == "input[2].call_id"
    assert named("messages[3].content", names) == "input[4].output"
    assert named("messages[0].content", names) == "instructions"
    assert named("messages.tools[0].parameters", names) == "tools[0].parameters"

    turns = [
        TURN, TURN, {"role": "assistant", "content": [{"type": "text", "text": "x"}, USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "y"}]}, TURN,
    ]  # fmt: skip
    fields = read((MessageFields, {"max_tokens": 1, "system": "z", "messages": turns}))
    names = MessageDialect(fields).names
    assert named("messages.messages[2].tool_calls[0].arguments", names) == "messages[2].content[1].input"
    assert named("messages[3].tool_call_id", names) == "messages[3].content[0].tool_use_id"
    assert named("messages[4].content", names) == "messages[3].content"
    assert named("messages.tools[0].parameters", names) == "tools[0].input_schema"
    assert named("messages.tools[0].name", names) == "tools[0].name"
    assert named("messages.continue_final_message", names) == "messages[4]"


def test_system_turns_at_the_beginning_are_one() -> None:
    system, later = {"role": "system", "content": "b"}, {"role": "system", "content": "c"}
    for fields in (
        read((MessageFields, {"max_tokens": 1, "system": "a", "messages": [system, TURN, later]})),
        read((ResponseFields, {"instructions": "a", "input": [system | {"role": "developer"}, TURN, later]})),
    ):
        turns = [(each.message.role, each.message.content) for each in fields.turns()]
        assert turns == [("system", "a\n\nb"), ("user", "x"), ("system", "c")]


def test_anthropic_s_consecutive_turns_of_a_role_are_one() -> None:
    turns = [
        TURN, {"role": "user", "content": [{"type": "text", "text": "y"}]},
        {"role": "assistant", "content": "a"}, {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]}, TURN, TURN,
    ]  # fmt: skip
    fields = read((MessageFields, {"max_tokens": 1, "messages": turns}))
    turns = [(each.message.role, each.message.content, len(each.message.calls)) for each in fields.turns()]
    assert turns == [("user", "x\ny", 0), ("assistant", "a", 1), ("tool", "r", 0), ("user", "x\nx", 0)]
