"""`input` of `/v1/responses`: messages, and calls of functions with their outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Tag

from services.client import Message, ToolCall
from services.http.members.fields import Strict, by_type, only
from services.http.members.tool_fields import CallArguments

_PARTS = ("input_text", "output_text", "text")
_PART_MEMBERS = {"type", "text", "annotations", "logprobs"}


def _joined(content: Any) -> Any:
    """Parts of text, those of earlier answers too, as one text: chat templates know no parts."""
    if not isinstance(content, list):
        return content
    for place, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in _PARTS or part.keys() - _PART_MEMBERS:
            raise ValueError(f'part {place}: expected {{"type": "input_text", "text": …}}, others are not supported')
        if not isinstance(part.get("text"), str):
            raise ValueError(f"part {place}: expected a string as its text")
    return "".join(part["text"] for part in content)


class InputMessage(Strict):
    """One turn; `id` and `status` are those of an earlier answer's message, and say nothing."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined)]
    id: str | None = None
    status: str | None = None
    phase: Annotated[Any, only()] = None


class InputCall(Strict):
    """A call of an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: CallArguments
    id: str | None = None
    status: str | None = None


class InputCallOutput(Strict):
    """The result of a function."""

    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[str, BeforeValidator(_joined)]
    id: str | None = None
    status: str | None = None


Item = Annotated[
    Annotated[InputMessage, Tag("~message")]
    | Annotated[InputCall, Tag("~function_call")]
    | Annotated[InputCallOutput, Tag("~function_call_output")],
    by_type("message", "function_call", "function_call_output", default="message", other="message"),
]


def turns_of(items: Iterable[Item]) -> list[Message]:
    """Calls become part of the assistant's turn before them. `developer` is OpenAI's newer name of `system`."""
    turns: list[Message] = []
    for item in items:
        match item:
            case InputMessage():
                turns.append(Message("system" if item.role == "developer" else item.role, item.content))
            case InputCallOutput():
                turns.append(Message("tool", item.output, (), item.call_id))
            case InputCall():
                before = turns.pop() if turns and turns[-1].role == "assistant" else Message("assistant", "")
                call = ToolCall(item.call_id, item.name, item.arguments)
                turns.append(Message("assistant", before.content, (*before.calls, call)))
    return turns
