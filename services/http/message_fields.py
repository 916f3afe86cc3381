"""The body of Anthropic's `/v1/messages`: turns of blocks, which become the turns of chats, and tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from services.client.generation.request import Message, Request, StructuredOutputs, Tool, ToolCall, Tools
from services.http.api_error import NO_THREADS
from services.http.fields import CommonFields, Placed, Strict, WrongMember, by_type, one_system_turn, only, turn_names

Cached = Annotated[dict[str, Any] | None, Field(description="Ignored: kolm caches every prefix by itself.")]


class TextBlock(Strict):
    """Text. `parsed_output` is the client's reading of it."""

    type: Literal["text"]
    text: str
    cache_control: Cached = None
    citations: Annotated[Any, only([])] = None
    parsed_output: Any = None


class ThinkingBlock(Strict):
    """Thoughts of an earlier answer, which are not shown to the model again."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Strict):
    """Thoughts of an earlier answer of another server, encrypted. They are not shown to the model."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Strict):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: Cached = None
    caller: Any = None
    toolset_name: Annotated[Any, only()] = None

    def call(self) -> ToolCall:
        return ToolCall(self.id, self.name, json.dumps(self.input, ensure_ascii=False))


_Texts = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[Annotated[Annotated[TextBlock, Tag("~text")], by_type("text")]], Tag("~blocks")],
    Discriminator(lambda value: "~blocks" if isinstance(value, list) else "~string"),
]


def _text(given: str | list[TextBlock], between: str = "") -> str:
    return given if isinstance(given, str) else between.join(block.text for block in given)


class ToolResultBlock(Strict):
    """The result of a call; the result of a failed call begins with "Error: "."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: _Texts | None = None
    is_error: bool | None = None
    cache_control: Cached = None
    toolset_name: Annotated[Any, only()] = None

    def turn(self) -> Message:
        text = _text(self.content or "")
        return Message("tool", f"Error: {text}" if self.is_error else text, (), self.tool_use_id)


Block = Annotated[
    Annotated[TextBlock, Tag("~text")]
    | Annotated[ThinkingBlock, Tag("~thinking")]
    | Annotated[RedactedThinkingBlock, Tag("~redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("~tool_use")]
    | Annotated[ToolResultBlock, Tag("~tool_result")],
    by_type("text", "thinking", "redacted_thinking", "tool_use", "tool_result"),
]
_Blocks = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[Block], Field(fail_fast=True), Tag("~blocks")],
    Discriminator(lambda value: "~blocks" if isinstance(value, list) else "~string"),
]


class Turn(Strict):
    """One turn: the user's has the results of calls, the assistant's has calls. An earlier answer may be sent back
    whole, with its members that do not concern the turn.
    """

    role: Literal["user", "assistant", "system"]
    content: _Blocks
    id: str | None = None
    type: Literal["message"] | None = None
    model: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Any = None
    metrics: Any = None
    kolm: Any = None

    @field_validator("content")
    @classmethod
    def _of_its_role(cls, value: str | list[Block], info: ValidationInfo) -> str | list[Block]:
        thoughts = (ThinkingBlock, RedactedThinkingBlock)
        own = {"user": (TextBlock, ToolResultBlock), "assistant": (TextBlock, *thoughts, ToolUseBlock)}
        for place, block in enumerate(value if isinstance(value, list) else ()):
            if not isinstance(block, own.get(info.data.get("role", ""), (TextBlock,))):
                problem = f"blocks of this type do not belong to the role {info.data.get('role')}"
                raise WrongMember(f"[{place}].type", problem, block.type)
        return value

    def blocks(self) -> list[Block]:
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content


def _joined(turns: Sequence[Turn], first: int) -> Iterator[Placed]:
    """The turns of a chat for consecutive `turns` of one role, of which the first has the index `first`: one turn for
    each result, and one for the text. Anthropic's API joins consecutive turns.
    """
    places = [
        (f"messages[{first + place}].content[{number}]", block)
        for place, turn in enumerate(turns)
        for number, block in enumerate(turn.blocks())
    ]
    for path, block in places:
        if isinstance(block, ToolResultBlock):
            paths = {"content": f"{path}.content", "tool_call_id": f"{path}.tool_use_id"}
            yield Placed(block.turn(), path, paths)
    texts = [block for _, block in places if isinstance(block, TextBlock)]
    calls = [(path, block) for path, block in places if isinstance(block, ToolUseBlock)]
    if texts or calls:
        names = {"id": "id", "name": "name", "arguments": "input"}
        paths = {
            f"tool_calls[{number}].{part}": f"{path}.{member}"
            for number, (path, _) in enumerate(calls)
            for part, member in names.items()
        }
        turn = Message(turns[0].role, _text(texts, "\n"), [block.call() for _, block in calls])
        yield Placed(turn, f"messages[{first}]", paths)


class MessageTool(Strict):
    """A function. Tools that Anthropic runs itself have other types and are refused."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: Cached = None
    eager_input_streaming: bool | None = None
    allowed_callers: Annotated[Any, only([], ["direct"])] = None
    defer_loading: Annotated[Any, only(False)] = None
    input_examples: Annotated[Any, only([])] = None

    def tool(self) -> Tool:
        return Tool(self.name, self.description or "", self.input_schema, bool(self.strict))


class MessageChoice(Strict):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @field_validator("name")
    @classmethod
    def _of_a_tool(cls, value: str | None, info: ValidationInfo) -> str | None:
        if (value is None) == (info.data.get("type") == "tool"):
            raise ValueError("belongs to the type tool, which needs it")
        return value


class Thinking(Strict):
    """`thinking`: whether an answer shows the model's thoughts. Their length is the model's choice."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Strict):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Strict):
    """`output_config`; `effort`, which coding agents always send, changes nothing, as `thinking` does not."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ThoughtsCleared(Strict):
    """An edit that removes thoughts of earlier turns. It changes nothing: kolm never shows them to the model."""

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(Strict):
    """`context_management`; edits that would take results of tools away are refused."""

    edits: Annotated[list[ThoughtsCleared], Field(fail_fast=True)] | None = None


class Metadata(Strict):
    """`metadata`; kept nowhere."""

    user_id: str | None = None


class PromptFields(Strict):
    """The members of a prompt, which are the body of `/v1/messages/count_tokens`."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(fail_fast=True)]
    system: _Texts | None = None
    tools: Annotated[list[MessageTool], Field(fail_fast=True)] | None = None
    tool_choice: MessageChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    cache_control: Cached = None

    @field_validator("messages")
    @classmethod
    def _continued(cls, value: list[Turn]) -> list[Turn]:
        """Refuses white space at the end of a turn to continue, as Anthropic does: tokens of words begin with it."""
        last = value[-1] if value else None
        if last is None or last.role != "assistant":
            return value
        texts = [(place, block) for place, block in enumerate(last.blocks()) if isinstance(block, TextBlock)]
        if texts and texts[-1][1].text != texts[-1][1].text.rstrip():
            part = "" if isinstance(last.content, str) else f"[{texts[-1][0]}].text"
            problem = "the answer continues this turn, which ends with blanks; leave them out"
            raise WrongMember(f"[{len(value) - 1}].content{part}", problem, texts[-1][1].text[-20:])
        return value

    @property
    def continues(self) -> bool:
        """Whether the answer goes on within the last turn, which is the assistant's."""
        roles = [turn.message.role for turn in self.turns()][-1:] + [turn.role for turn in self.messages][-1:]
        return roles == ["assistant", "assistant"]

    def turns(self) -> list[Placed]:
        turns, place = list[Placed](), 0
        if self.system is not None:
            turns.append(Placed(Message("system", _text(self.system, "\n\n")), "system", {"content": "system"}))
        for _, group in groupby(self.messages, lambda turn: turn.role):
            of_role = list(group)
            turns += _joined(of_role, place)
            place += len(of_role)
        return one_system_turn(turns)

    def names(self) -> dict[str, str]:
        """The caller's names of turns and tools, by the generation server's."""
        last = f"messages[{len(self.messages) - 1}]" if self.messages else "messages"
        named = {"tools[].parameters": "tools[].input_schema", "messages.continue_final_message": last}
        return turn_names(self.turns()) | named

    def callable(self) -> Tools | None:
        """The tools that the model may call."""
        choice = self.tool_choice
        if not self.tools and (choice is None or choice.type in ("auto", "none")):
            return None
        tools = [each.tool() for each in self.tools or ()]
        if choice is None:
            return Tools(tools)
        how = {"auto": "auto", "none": "none"}.get(choice.type, "required")
        parallel = choice.type != "tool" and not choice.disable_parallel_tool_use
        return Tools(tools, how, () if choice.name is None else [choice.name], parallel)

    def prompt(self) -> Request:
        turns = [each.message for each in self.turns()]
        return Request(messages=turns, model=self.model, tools=self.callable(), continue_final_message=self.continues)


def _threadless(_: object) -> NoReturn:
    raise PydanticCustomError(NO_THREADS, "no conversation is kept here; send all of its messages, without a thread")


class MessageFields(PromptFields, CommonFields):
    """The body: Anthropic's members, and the members of the other endpoints."""

    max_tokens: int
    temperature: Annotated[float, Field(le=1)] | None = None
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] | None = None
    metadata: Metadata | None = None
    n: Annotated[Any, only(1)] = None
    stop: Annotated[Any, only()] = None
    stream_options: Annotated[Any, only()] = None
    service_tier: Annotated[Any, only("auto", "standard_only")] = None
    speed: Annotated[Any, only("standard")] = None
    thread: Annotated[Any, BeforeValidator(_threadless)] = None
    container: Annotated[Any, only()] = None
    mcp_servers: Annotated[Any, only([])] = None

    @field_validator("output_config")
    @classmethod
    def _one_constraint(cls, value: OutputConfig | None, info: ValidationInfo) -> OutputConfig | None:
        if value and value.format and info.data.get("structured_outputs"):
            problem = "cannot be combined with structured_outputs; send one of them"
            raise WrongMember(".format", problem, value.format.type)
        return value

    @property
    def shows_thoughts(self) -> bool:
        wanted = self.thinking
        return wanted is not None and wanted.type != "disabled" and wanted.display != "omitted"

    def constraint(self) -> StructuredOutputs | None:
        if self.output_config is not None and self.output_config.format is not None:
            return StructuredOutputs(json=self.output_config.format.schema_)
        return super().constraint()
