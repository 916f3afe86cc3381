"""`/v1/chat/completions` and `/v1/completions`: their bodies, and their answers, which have choices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from services.client.generation.completion import Choice, Chunk, Finished, Resolved
from services.client.generation.output_reader import OutputReader, Part, Thought, output_reader
from services.client.generation.request import Message, Request, StructuredOutputs, ToolCall, Tools, call_id
from services.client.generation.tool_call_reader import Arguments, CallBegins, Text
from services.http.answer import Answer, TextLogprobs, chat_logprobs, finish_reason
from services.http.fields import NAMES, CommonFields, Placed, Strict, WrongMember, joined, only, turn_names, unsupported
from services.http.tool_fields import Called, NestedFunction, NestedToolChoice, tools_of

CHAT_TOOLS = {"tools[]": "tools[].function"}
"""A chat's names of tools, by the generation server's."""


class ToolCallDeltas:
    """The pieces of one choice that has thoughts or calls."""

    def __init__(self, reader: OutputReader, request_id: str, choice: int) -> None:
        self._reader, self._request_id, self._choice = reader, request_id, choice
        self.calls = 0

    @property
    def cut_off(self) -> bool:
        """After `end`: whether the output ended within a call."""
        return self._reader.cut_off

    def feed(self, text: str) -> list[dict[str, Any]]:
        return [self._delta(part) for part in self._reader.feed(text)]

    def end(self) -> list[dict[str, Any]]:
        """The text that was held back."""
        return [self._delta(part) for part in self._reader.end()]

    def _delta(self, part: Part) -> dict[str, Any]:
        match part:
            case Text():
                return {"content": part.text}
            case Thought():
                return {"reasoning_content": part.text}
            case CallBegins():
                self.calls += 1
                call = ToolCall(call_id(self._request_id, self._choice, self.calls - 1), part.name, "")
                return {"tool_calls": [{"index": self.calls - 1, **call_json(call)}]}
            case Arguments():
                return {"tool_calls": [{"index": self.calls - 1, "function": {"arguments": part.text}}]}


def call_json(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def message_json(content: str, calls: Sequence[ToolCall], thoughts: str = "") -> dict[str, Any]:
    """An assistant's message; with calls an empty content is null. Thoughts have vLLM's and llama-server's name."""
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if thoughts:
        message["reasoning_content"] = thoughts
    if not calls:
        return message
    return {**message, "content": content or None, "tool_calls": [call_json(call) for call in calls]}


class ChatMessage(Strict):
    """One turn. Members of answers may come back with them; `parsed` is the client's reading of the content."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, joined("text"), Field(validate_default=True)] = None
    name: str | None = None
    refusal: Annotated[Any, only()] = None
    annotations: Annotated[Any, only([])] = None
    reasoning_content: str | None = None
    parsed: Any = None
    audio: Annotated[Any, only()] = None
    tool_calls: Annotated[list[Called], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    function_call: Annotated[Any, only()] = None

    @field_validator("name")
    @classmethod
    def _of_a_function(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Takes the name of a result's function; chat templates know no other names."""
        if value is not None and info.data.get("role") != "tool":
            raise unsupported()
        return value

    @model_validator(mode="after")
    def _of_its_role(self) -> ChatMessage:
        if self.content is None and not self.tool_calls:
            raise WrongMember(".content", "expected text, or tool_calls", None)
        if self.tool_calls and self.role != "assistant":
            raise WrongMember(".tool_calls", f"belong to the role assistant; the role is {self.role}", "calls")
        if self.reasoning_content and self.role != "assistant":
            problem = f"belongs to the role assistant; the role is {self.role}"
            raise WrongMember(".reasoning_content", problem, self.reasoning_content)
        if (self.tool_call_id is None) == (self.role == "tool"):
            problem = f"belongs to the role tool, which needs it; the role is {self.role}"
            raise WrongMember(".tool_call_id", problem, self.tool_call_id)
        return self

    def turn(self) -> Message:
        """`developer` is OpenAI's newer name of `system`, which chat templates know."""
        role = "system" if self.role == "developer" else self.role
        calls = [each.call() for each in self.tool_calls or ()]
        return Message(role, self.content or "", calls, self.tool_call_id or "", self.reasoning_content or "")

    def paths(self, place: int) -> dict[str, str]:
        """The paths of names and arguments of its calls."""
        parts = [f"tool_calls[{number}]" for number in range(len(self.tool_calls or ()))]
        members = [(part, member) for part in parts for member in ("name", "arguments")]
        return {f"{part}.{member}": f"messages[{place}].{part}.function.{member}" for part, member in members}


def placed(messages: Iterable[ChatMessage]) -> list[Placed]:
    """The turns of a chat."""
    return [Placed(each.turn(), f"messages[{place}]", each.paths(place)) for place, each in enumerate(messages)]


class JsonSchema(Strict):
    """OpenAI's. Name and description are for people."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of an answer: text, any JSON object, or JSON that a schema allows."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @field_validator("json_schema")
    @classmethod
    def _one_schema(cls, value: JsonSchema | None, info: ValidationInfo) -> JsonSchema | None:
        if value is not None and info.data.get("type") != "json_schema":
            raise ValueError("belongs to the type json_schema")
        return value


class Continuation(Strict):
    """vLLM's members of a chat whose last message, the assistant's, the answer continues."""

    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[bool | None, Field(validate_default=True)] = None

    @field_validator("continue_final_message")
    @classmethod
    def _instead_of_a_turn(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        begins = info.data.get("add_generation_prompt")
        if value and begins:
            raise ValueError("cannot be true if add_generation_prompt is; set one of them to false, or leave it out")
        if begins is False and not value:
            raise ValueError("expected true if add_generation_prompt is false: an answer begins or continues a turn")
        return value


class ChatFields(CommonFields, Continuation):
    """The body."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[NestedFunction], Field(fail_fast=True)] | None = None
    tool_choice: NestedToolChoice = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[Any, only([])] = None
    modalities: Annotated[Any, only(["text"])] = None
    metadata: Annotated[Any, only({})] = None
    reasoning_effort: Annotated[Any, only("none")] = None
    verbosity: Annotated[Any, only("medium")] = None
    chat_template_kwargs: Annotated[Any, only({})] = None
    store: Annotated[Any, only(False)] = None
    service_tier: Annotated[Any, only("auto", "default")] = None

    @field_validator("top_logprobs")
    @classmethod
    def _with_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and not info.data.get("logprobs"):
            raise ValueError("needs logprobs to be true")
        return value

    @field_validator("response_format")
    @classmethod
    def _one_constraint(cls, value: ResponseFormat | None, info: ValidationInfo) -> ResponseFormat | None:
        if value is None or value.type == "text":
            return value
        if info.data.get("structured_outputs"):
            raise ValueError("cannot be combined with structured_outputs; send one of them")
        if value.type == "json_schema" and value.json_schema is None:
            raise WrongMember(".json_schema", "expected a schema, which the type json_schema needs", None)
        return value

    @field_validator("messages")
    @classmethod
    def _results_of_calls(cls, value: list[ChatMessage]) -> list[ChatMessage]:
        called: dict[str, str] = {}  # so far: a later turn may use an id again
        for place, message in enumerate(value):
            if message.name is not None and message.name != (name := called.get(message.tool_call_id or "")):
                problem = f"expected {name!r}, the function of its call, or no name"
                raise WrongMember(f"[{place}].name", problem, message.name)
            called |= {call.id: call.function.name for call in message.tool_calls or ()}
        return value

    def constraint(self) -> StructuredOutputs | None:
        """The constraint on the output. It keeps to a schema, `strict` or not."""
        match self.response_format:
            case ResponseFormat(type="json_schema", json_schema=JsonSchema(schema_=schema)):
                return StructuredOutputs(json=schema)
            case ResponseFormat(type="json_object"):
                return StructuredOutputs(json_object=True)
        return super().constraint()

    def callable(self) -> Tools | None:
        """The tools that the model may call."""
        return tools_of(self.tools, self.tool_choice, self.parallel_tool_calls)

    @field_validator("max_completion_tokens")
    @classmethod
    def _one_limit(cls, value: int | None, info: ValidationInfo) -> int | None:
        if None not in (value, limit := info.data.get("max_tokens")) and value != limit:
            raise ValueError(f"differs from max_tokens, {limit}; send one of them")
        return value


class ChatDialect:
    """The dialect of chats."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def __init__(self, fields: ChatFields) -> None:
        self.fields = fields
        self._calls: dict[int, ToolCallDeltas] = {}  # of a stream with tools, by choice

    @property
    def names(self) -> Mapping[str, str]:
        longest = "max_tokens" if self.fields.max_completion_tokens is None else "max_completion_tokens"
        names = {**NAMES, "sampling.max_tokens": longest, "sampling.logprobs": "top_logprobs"}
        if self.fields.response_format is not None:
            names["sampling.structured_outputs.json"] = "response_format.json_schema.schema"
        return names | turn_names(placed(self.fields.messages)) | CHAT_TOOLS

    def request(self) -> Request:
        asked = self.fields
        longest = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        sampling = asked.sampling(longest, asked.top_logprobs or 0 if asked.logprobs else None)
        turns, continued = [each.message for each in placed(asked.messages)], bool(asked.continue_final_message)
        return asked.request(sampling, messages=turns, tools=asked.callable(), continue_final_message=continued)

    def answer(self, asked: Request, resolved: Resolved, promise: bytes | None) -> Answer:
        for choice in range(self.fields.n or 1):
            if (reader := output_reader(resolved, asked)) is not None:
                self._calls[choice] = ToolCallDeltas(reader, resolved.request_id, choice)
        return Answer(self, asked, resolved, promise)

    def choice(self, choice: Choice) -> dict[str, Any]:
        logprobs = chat_logprobs(choice.logprobs) if self.fields.logprobs else None
        message = message_json(choice.content, choice.tool_calls, choice.thoughts)
        why = finish_reason(choice, len(choice.tool_calls), cut_off=choice.cut_off)
        return {"message": message, "logprobs": logprobs, "finish_reason": why}

    def opening(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def pieces(self, chunk: Chunk) -> list[dict[str, Any]]:
        calls, deltas = self._calls.get(chunk.index), list[dict[str, Any]]([{"content": chunk.text}])
        logprobs = chat_logprobs(chunk.logprobs) if self.fields.logprobs else None
        if calls is not None:
            deltas = calls.feed(chunk.text) or ([{}] if logprobs else [])
        return [{"delta": delta, "logprobs": None if place else logprobs} for place, delta in enumerate(deltas)]

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        calls = self._calls.get(finished.index)
        held = [] if calls is None else [{"delta": delta, "logprobs": None} for delta in calls.end()]
        count, cut_off = (0, False) if calls is None else (calls.calls, calls.cut_off)
        why = finish_reason(finished, count, cut_off=cut_off)
        return [*held, {"delta": {}, "logprobs": None, "finish_reason": why}]


def _one_prompt(value: Any) -> Any:
    """A text or a list of token ids; either may be the only member of a list."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        (value,) = value
    is_ids = isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    if isinstance(value, str) or is_ids:
        return value
    raise ValueError("expected one text, or one list of token ids; send several prompts as several requests")


class TextFields(CommonFields):
    """The body."""

    prompt: Annotated[Any, BeforeValidator(_one_prompt)]
    logprobs: int | None = None
    echo: Annotated[Any, only(False)] = None
    best_of: Annotated[Any, only(1)] = None
    suffix: str | None = None


class TextDialect:
    """The dialect of completions."""

    prefix = "cmpl-"
    whole_object = "text_completion"
    piece_object = "text_completion"
    names: Mapping[str, str] = {**NAMES, "token_ids": "prompt"}

    def __init__(self, fields: TextFields) -> None:
        self.fields = fields
        self._logprobs: defaultdict[int, TextLogprobs] = defaultdict(TextLogprobs)  # by choice, if they are asked for

    def request(self) -> Request:
        asked = self.fields
        given = {"prompt": asked.prompt} if isinstance(asked.prompt, str) else {"token_ids": asked.prompt}
        return asked.request(asked.sampling(asked.max_tokens, asked.logprobs), suffix=asked.suffix or "", **given)

    def answer(self, asked: Request, resolved: Resolved, promise: bytes | None) -> Answer:
        return Answer(self, asked, resolved, promise)

    def choice(self, choice: Choice) -> dict[str, Any]:
        if self.fields.logprobs is None:
            return {"text": choice.text, "logprobs": None}
        logprobs = TextLogprobs()
        added, last = logprobs.add(choice), logprobs.end()
        return {"text": choice.text, "logprobs": {name: [*added[name], *last[name]] for name in added}}

    def opening(self) -> dict[str, Any]:
        return {"text": "", "logprobs": None}

    def pieces(self, chunk: Chunk) -> list[dict[str, Any]]:
        logprobs = None if self.fields.logprobs is None else self._logprobs[chunk.index].add(chunk)
        return [{"text": chunk.text, "logprobs": logprobs}]

    def closing(self, finished: Finished) -> list[dict[str, Any]]:
        logprobs = None if self.fields.logprobs is None else self._logprobs[finished.index].end()
        return [{"text": "", "logprobs": logprobs, "finish_reason": finished.finish_reason}]
