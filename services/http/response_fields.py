"""The body of `/v1/responses`. Nothing is kept, so that no response can be continued by its id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from services.client.generation.request import Message, StructuredOutputs, ToolCall, Tools
from services.http.completions import JsonSchema
from services.http.fields import CommonFields, Placed, Strict, WrongMember, by_type, joined, one_system_turn, only
from services.http.tool_fields import ASYNC, CallArguments, FlatFunction, FlatToolChoice, tools_of

_TEXT = joined("input_text", "output_text", "text", also=("annotations", "logprobs", "parsed"))
"""Parts of earlier answers may come back as they were sent; `parsed` is the client's reading of the text."""

DIRECT = {"type": "direct"}
"""The `caller` of a call that the model made itself."""

_OF_CALL = {"id": "call_id", "name": "name", "arguments": "arguments"}
Included = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
_LOGPROBS = "message.output_text.logprobs"


class InputMessage(Strict):
    """One turn. An earlier answer's message may have `id`, `status` and `phase`, which are ignored."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, _TEXT]
    id: str | None = None
    status: str | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class InputCall(Strict):
    """A call of an earlier answer; `parsed_arguments` is the client's reading of its arguments."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: CallArguments = "{}"
    parsed_arguments: Any = None
    id: str | None = None
    status: str | None = None
    caller: Annotated[Any, only(DIRECT)] = None
    namespace: Annotated[Any, only()] = None
    async_: Annotated[Any, only(False), Field(validation_alias=ASYNC)] = None


class InputCallOutput(Strict):
    """The result of a function; `name` is the function's."""

    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[str, _TEXT]
    id: str | None = None
    status: str | None = None
    name: str | None = None
    caller: Annotated[Any, only(DIRECT)] = None
    namespace: Annotated[Any, only()] = None


Item = Annotated[
    Annotated[InputMessage, Tag("~message")]
    | Annotated[InputCall, Tag("~function_call")]
    | Annotated[InputCallOutput, Tag("~function_call_output")],
    by_type("message", "function_call", "function_call_output", default="message", other="message"),
]


def turns_of(items: Iterable[Item]) -> list[Placed]:
    """Calls become part of the assistant's turn before them. `developer` is OpenAI's newer name of `system`."""
    turns: list[Placed] = []
    for _, group in groupby(enumerate(items), lambda each: isinstance(each[1], InputCall)):
        calls: list[tuple[int, InputCall]] = []
        for place, item in group:
            if isinstance(item, InputCall):
                calls.append((place, item))
            else:
                turns.append(_placed(item, f"input[{place}]"))
        if calls:
            follows = bool(turns) and turns[-1].message.role == "assistant"
            turns.append(_calling(turns.pop() if follows else None, calls))
    return turns


def _placed(item: InputMessage | InputCallOutput, path: str) -> Placed:
    if isinstance(item, InputMessage):
        return Placed(Message("system" if item.role == "developer" else item.role, item.content), path)
    paths = {"content": f"{path}.output", "tool_call_id": f"{path}.call_id"}
    return Placed(Message("tool", item.output, (), item.call_id), path, paths)


def _calling(before: Placed | None, items: Sequence[tuple[int, InputCall]]) -> Placed:
    """The assistant's turn of consecutive calls, and of the message `before` them."""
    paths = {
        f"tool_calls[{number}].{part}": f"input[{place}].{member}"
        for number, (place, _) in enumerate(items)
        for part, member in _OF_CALL.items()
    }
    calls = [ToolCall(call.call_id, call.name, call.arguments) for _, call in items]
    content, path = ("", f"input[{items[0][0]}]") if before is None else (before.message.content, before.path)
    return Placed(Message("assistant", content, calls), path, paths)


def _plain(role: str, text: str, member: str) -> Placed:
    return Placed(Message(role, text), member, {"content": member})


def _text_or_items(value: Any) -> str:
    return "~items" if isinstance(value, list) else "~text"


class TextFormat(JsonSchema):
    """The form of the text: anything, any JSON object, or JSON that a schema allows."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _one_schema(self) -> TextFormat:
        if (self.schema_ is not None) != (self.type == "json_schema"):
            problem = f"belongs to the type json_schema, which needs it; the type is {self.type}"
            raise WrongMember(".schema", problem, self.schema_)
        return self


class TextSettings(Strict):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Annotated[Any, only("medium")] = None


class ObfuscationOptions(Strict):
    """`stream_options`."""

    include_obfuscation: Annotated[Any, only(False)] = None

    include_usage: Annotated[Any, only()] = None


class Reasoning(Strict):
    """`reasoning`, of which kolm has none."""

    effort: Annotated[Any, only("none")] = None
    summary: Annotated[Any, only()] = None
    generate_summary: Annotated[Any, only()] = None


class ResponseFields(CommonFields):
    """The body: OpenAI's members, and the members of the other endpoints."""

    input: Annotated[Annotated[str, Tag("~text")] | Annotated[list[Item], Tag("~items")], Discriminator(_text_or_items)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextSettings | None = None
    stream_options: ObfuscationOptions | None = None  # type: ignore[assignment]
    n: Annotated[Any, only(1)] = None
    max_tokens: Annotated[Any, only()] = None
    metadata: Annotated[Any, only({})] = None
    tools: Annotated[list[FlatFunction], Field(fail_fast=True)] | None = None
    tool_choice: FlatToolChoice = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[Any, only()] = None
    previous_response_id: Annotated[Any, only()] = None
    conversation: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None
    include: Annotated[list[Included], Field(fail_fast=True)] | None = None
    reasoning: Reasoning | None = None
    top_logprobs: int | None = None
    background: Annotated[Any, only(False)] = None
    store: Annotated[Any, only(False)] = None
    truncation: Annotated[Any, only("disabled")] = None
    service_tier: Annotated[Any, only("auto", "default")] = None

    @property
    def logprobs(self) -> int | None:
        """The number of alternatives to list with each token's log-probability; None for no log-probabilities."""
        return self.top_logprobs or 0 if _LOGPROBS in (self.include or ()) else None

    def turns(self) -> list[Placed]:
        """Instructions before all others, in one turn with system turns after them."""
        first = [] if self.instructions is None else [_plain("system", self.instructions, "instructions")]
        if isinstance(self.input, str):
            return [*first, _plain("user", self.input, "input")]
        return one_system_turn([*first, *turns_of(self.input)])

    @field_validator("include")
    @classmethod
    def _of_text_alone(cls, value: list[str] | None, info: ValidationInfo) -> list[str] | None:
        if value and _LOGPROBS in value and info.data.get("tools"):
            problem = "is not supported with tools; /v1/chat/completions has log-probabilities of calls"
            raise WrongMember(f"[{value.index(_LOGPROBS)}]", problem, _LOGPROBS)
        return value

    @field_validator("top_logprobs")
    @classmethod
    def _included(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and _LOGPROBS not in (info.data.get("include") or ()):
            raise ValueError(f"needs include to have {_LOGPROBS}")
        return value

    @field_validator("text")
    @classmethod
    def _one_constraint(cls, value: TextSettings | None, info: ValidationInfo) -> TextSettings | None:
        if value and value.format and value.format.type != "text" and info.data.get("structured_outputs"):
            raise WrongMember(
                ".format", "cannot be combined with structured_outputs; send one of them", value.format.type
            )
        return value

    def constraint(self) -> StructuredOutputs | None:
        """The constraint on the output. It keeps to a schema, `strict` or not."""
        match self.text and self.text.format:
            case TextFormat(type="json_schema", schema_=schema):
                return StructuredOutputs(json=schema)
            case TextFormat(type="json_object"):
                return StructuredOutputs(json_object=True)
        return super().constraint()

    def text_settings(self) -> dict[str, Any]:
        """The settings of text that a response repeats."""
        wanted = self.text and self.text.format
        return {"format": wanted.model_dump(by_alias=True, exclude_none=True) if wanted else {"type": "text"}}

    def callable(self) -> Tools | None:
        """The tools that the model may call."""
        return tools_of(self.tools, self.tool_choice, self.parallel_tool_calls)

    def tool_settings(self) -> dict[str, Any]:
        """The settings of tools that a response repeats."""
        choice, absent = self.tool_choice or ("auto" if self.tools else "none"), {"parameters": None, "strict": True}
        return {
            "tools": [absent | each.model_dump(exclude_none=True, by_alias=True) for each in self.tools or ()],
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "parallel_tool_calls": bool(self.tools) if self.parallel_tool_calls is None else self.parallel_tool_calls,
        }
