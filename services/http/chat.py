"""`/v1/chat/completions`: its body, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from services.client import Chunk, Message, Request, StructuredOutputs
from services.client.completion import Choice, Resolved
from services.http.answer import Answer
from services.http.fields import NAMES, CommonFields, Strict, joined, only
from services.http.logprobs import chat_logprobs


class ChatMessage(Strict):
    """One turn. Members of answers that are null (refusal, tool_calls) may come back with them."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(joined)]
    name: Annotated[Any, only()] = None
    refusal: Annotated[Any, only()] = None
    annotations: Annotated[Any, only([])] = None
    audio: Annotated[Any, only()] = None
    tool_calls: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only()] = None

    def turn(self) -> Message:
        """`developer` is OpenAI's newer name of `system`, which chat templates know."""
        return Message("system" if self.role == "developer" else self.role, self.content)


class JsonSchema(Strict):
    """OpenAI's. Name and description are for people."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Strict):
    """What an answer looks like: text, any JSON object, or JSON that a schema allows."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @field_validator("json_schema")
    @classmethod
    def _one_schema(cls, value: JsonSchema | None, info: ValidationInfo) -> JsonSchema | None:
        if value is not None and info.data.get("type") != "json_schema":
            raise ValueError("belongs to the type json_schema")
        return value


class ChatFields(CommonFields):
    """The body."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[Any, only([])] = None
    tool_choice: Annotated[Any, only("none")] = None
    functions: Annotated[Any, only([])] = None
    modalities: Annotated[Any, only(["text"])] = None
    store: Annotated[Any, only(False)] = None
    service_tier: Annotated[Any, only("auto", "default")] = None

    @field_validator("top_logprobs")
    @classmethod
    def _with_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and not info.data.get("logprobs"):
            raise ValueError("needs logprobs to be true")
        return value

    @field_validator("response_format")
    @classmethod
    def _one_constraint(cls, value: ResponseFormat | None, info: ValidationInfo) -> ResponseFormat | None:
        if value is None or value.type == "text":
            return value
        if info.data.get("structured_outputs"):
            raise ValueError("stands beside structured_outputs; send one of them")
        if value.type == "json_schema" and value.json_schema is None:
            raise ValueError("is of type json_schema and has no json_schema")
        return value

    def constraint(self) -> StructuredOutputs | None:
        """What the output has to look like. A schema is kept to whether it is `strict` or not."""
        match self.response_format:
            case ResponseFormat(type="json_schema", json_schema=JsonSchema(schema_=schema)):
                return StructuredOutputs(json=schema)
            case ResponseFormat(type="json_object"):
                return StructuredOutputs(json_object=True)
        return super().constraint()

    @field_validator("max_completion_tokens")
    @classmethod
    def _one_limit(cls, value: int | None, info: ValidationInfo) -> int | None:
        if None not in (value, limit := info.data.get("max_tokens")) and value != limit:
            raise ValueError("is another number than max_tokens; send one of them")
        return value


class Chat:
    """The dialect of chats."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def __init__(self, fields: ChatFields) -> None:
        self.fields = fields

    @property
    def names(self) -> Mapping[str, str]:
        longest = "max_tokens" if self.fields.max_completion_tokens is None else "max_completion_tokens"
        names = {**NAMES, "sampling.max_tokens": longest, "sampling.logprobs": "top_logprobs"}
        if self.fields.response_format is not None:
            names["sampling.structured_outputs.json"] = "response_format.json_schema.schema"
        return names

    def request(self) -> Request:
        asked = self.fields
        longest = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        sampling = asked.sampling(longest, asked.top_logprobs or 0 if asked.logprobs else None)
        return asked.request(sampling, messages=[message.turn() for message in asked.messages])

    def answer(self, asked: Request, resolved: Resolved, promise: bytes | None, *, files: bool = False) -> Answer:
        return Answer(self, asked, resolved, promise, files=files)

    def choice(self, choice: Choice) -> dict[str, Any]:
        logprobs = chat_logprobs(choice.logprobs) if self.fields.logprobs else None
        return {"message": {"role": "assistant", "content": choice.text, "refusal": None}, "logprobs": logprobs}

    def opening(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def piece(self, chunk: Chunk) -> dict[str, Any]:
        logprobs = chat_logprobs(chunk.logprobs) if self.fields.logprobs else None
        return {"delta": {"content": chunk.text}, "logprobs": logprobs}

    def closing(self) -> dict[str, Any]:
        return {"delta": {}, "logprobs": None}
