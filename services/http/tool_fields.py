"""Tools in both of OpenAI's APIs: functions, the choice among them, and earlier calls."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, AliasChoices, Field, Tag

from services.client.generation.request import Tool, ToolCall, Tools
from services.http.fields import Strict, by_type, only

ASYNC = AliasChoices("async", "async_")
"""The names of the member `async`, of which Python's clients have the second one in their dumps."""

Mode = Literal["auto", "required"]
Word = Annotated[Literal["none", "auto", "required"] | None, Tag("~other")]
_DISCRIMINATOR = by_type("function", "allowed_tools")


class FlatFunction(Strict):
    """A function of `/v1/responses`: its members are on one level with `type`, and an absent `strict` is true."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_callers: Annotated[Any, only([], ["direct"])] = None
    defer_loading: Annotated[Any, only(False)] = None
    async_: Annotated[Any, only(False), Field(validation_alias=ASYNC, serialization_alias="async")] = None

    def tool(self) -> Tool:
        strict = self.strict is not False and self.parameters is not None
        return Tool(self.name, self.description or "", self.parameters, strict)


class FunctionBody(Strict):
    """`function` of a chat's tool."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NestedFunction(Strict):
    """A function with its members in `function`, as `/v1/chat/completions` has it."""

    type: Literal["function"]
    function: FunctionBody

    def tool(self) -> Tool:
        body = self.function
        return Tool(body.name, body.description or "", body.parameters, bool(body.strict))


class Named(Strict):
    """A function by its name."""

    name: str


class NestedChoice(Strict):
    """`tool_choice` of a chat: this one function."""

    type: Literal["function"]
    function: Named

    @property
    def name(self) -> str:
        return self.function.name


class FlatChoice(Strict):
    """`tool_choice` of a response: this one function."""

    type: Literal["function"]
    name: str


class AllowedChoices(Strict):
    """Some of the tools."""

    mode: Mode
    tools: Annotated[list[NestedChoice], Field(fail_fast=True, min_length=1)]


class NestedAllowed(Strict):
    """`tool_choice` of a chat: some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedChoices

    @property
    def mode(self) -> Mode:
        return self.allowed_tools.mode

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.allowed_tools.tools]


class FlatAllowed(Strict):
    """`tool_choice` of a response: some of the tools."""

    type: Literal["allowed_tools"]
    mode: Mode
    tools: Annotated[list[FlatChoice], Field(fail_fast=True, min_length=1)]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.tools]


NestedToolChoice = Annotated[
    Annotated[NestedChoice, Tag("~function")] | Annotated[NestedAllowed, Tag("~allowed_tools")] | Word, _DISCRIMINATOR
]
FlatToolChoice = Annotated[
    Annotated[FlatChoice, Tag("~function")] | Annotated[FlatAllowed, Tag("~allowed_tools")] | Word, _DISCRIMINATOR
]


def _json_object(arguments: str) -> str:
    """The text of a JSON object: chat templates write arguments as an object. An empty text, which clients send for no
    arguments, is an empty object. Raises ValueError, as for the last call of an answer that was cut off.
    """
    if not arguments or arguments.isspace():
        return "{}"
    try:
        read = json.loads(arguments, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise ValueError("expected a JSON object, as JSON; leave out a call that was cut off")
    return arguments


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


CallArguments = Annotated[str, AfterValidator(_json_object)]


class CalledBody(Strict):
    """`function` of a call. `parsed_arguments` is the client's reading of its arguments."""

    name: str
    arguments: CallArguments = "{}"
    parsed_arguments: Any = None


class Called(Strict):
    """A call in an earlier answer. `index` is its place among the calls of a stream."""

    id: str
    type: Literal["function"]
    function: CalledBody
    index: int | None = None

    def call(self) -> ToolCall:
        return ToolCall(self.id, self.function.name, self.function.arguments)


def tools_of(
    given: list[NestedFunction] | list[FlatFunction] | None,
    choice: NestedToolChoice | FlatToolChoice,
    parallel: bool | None,
) -> Tools | None:
    """None without tools. A function that is named is called once."""
    if not given and choice in (None, "none", "auto"):
        return None
    tools, parallel = [each.tool() for each in given or ()], parallel is not False
    match choice:
        case NestedChoice() | FlatChoice():
            return Tools(tools, "required", [choice.name], parallel=False)
        case NestedAllowed() | FlatAllowed():
            return Tools(tools, choice.mode, choice.names, parallel)
    return Tools(tools, choice or "auto", (), parallel)
