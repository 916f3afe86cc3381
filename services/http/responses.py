"""`/v1/responses`: its body. Answers are text; nothing is kept, so that no response can be continued by its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from services.client import Message, Request
from services.client.completion import Resolved
from services.http.fields import NAMES, CommonFields, Strict, only
from services.http.response_answer import ResponseAnswer

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


class TextSettings(Strict):
    """`text`: plain text is all there is."""

    format: Annotated[Any, only({"type": "text"})] = None
    verbosity: Annotated[Any, only("medium")] = None


class ObfuscationOptions(Strict):
    """`stream_options`."""

    include_obfuscation: Annotated[Any, only(False)] = None

    include_usage: Annotated[Any, only()] = None


class ResponseFields(CommonFields):
    """The body: OpenAI's members, and those that the other endpoints have."""

    input: Annotated[str | list[InputMessage], Field(union_mode="left_to_right")]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextSettings | None = None
    stream_options: ObfuscationOptions | None = None  # type: ignore[assignment]
    n: Annotated[Any, only(1)] = None
    max_tokens: Annotated[Any, only()] = None
    metadata: Annotated[Any, only({})] = None
    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[Any, only()] = None
    previous_response_id: Annotated[Any, only()] = None
    conversation: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None
    include: Annotated[Any, only([])] = None
    reasoning: Annotated[Any, only({})] = None
    top_logprobs: Annotated[Any, only(0)] = None
    background: Annotated[Any, only(False)] = None
    store: Annotated[Any, only(False)] = None
    truncation: Annotated[Any, only("disabled")] = None
    service_tier: Annotated[Any, only("auto", "default")] = None

    def turns(self) -> list[Message]:
        """`developer` is OpenAI's newer name of `system`, which chat templates know."""
        first = [] if self.instructions is None else [Message("system", self.instructions)]
        if isinstance(self.input, str):
            return [*first, Message("user", self.input)]
        roles = {"developer": "system"}
        return [*first, *(Message(roles.get(each.role, each.role), each.content) for each in self.input)]


class Responses:
    """The dialect of responses."""

    names: Mapping[str, str] = {**NAMES, "messages": "input", "sampling.max_tokens": "max_output_tokens"}

    def __init__(self, fields: ResponseFields) -> None:
        self.fields = fields

    def request(self) -> Request:
        asked = self.fields
        return asked.request(asked.sampling(asked.max_output_tokens, None), messages=asked.turns())

    def answer(
        self, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool = False
    ) -> ResponseAnswer:
        return ResponseAnswer(self.fields, asked, resolved, promise, files=files or self.fields.wants_files)
