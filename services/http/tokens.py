"""`/tokenize` and `/detokenize`, with vLLM's members."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from services.client import AsyncRuntime
from services.client import Request as GenerationRequest
from services.client.errors import KolmError
from services.http.calls.api_error import ApiError, of_body, of_kolm
from services.http.calls.caller import body, token, while_there
from services.http.completions.chat import ChatMessage
from services.http.members.fields import Strict, only
from services.http.members.tool_fields import NestedFunction, tools_of
from services.http.settings import HttpSettings

_Fields = TypeVar("_Fields", bound=BaseModel)


class TokenizeFields(Strict):
    """A prompt or messages; exactly one."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] | None = None
    tools: Annotated[list[NestedFunction], Field(fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: Annotated[Any, only(True)] = None
    continue_final_message: Annotated[Any, only(False)] = None
    return_token_strs: Annotated[Any, only(False)] = None

    def request(self) -> GenerationRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "prompt: expected prompt or messages, one of them", "invalid_value", param="prompt")
        tools = tools_of(self.tools, None, None)
        if self.messages is None:
            return GenerationRequest(prompt=self.prompt, model=self.model, tools=tools)
        return GenerationRequest(messages=[message.turn() for message in self.messages], model=self.model, tools=tools)


class DetokenizeFields(Strict):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(fail_fast=True)]


class Tokens:
    """Asks the generation server, which has the tokenizer."""

    def __init__(self, runtime: AsyncRuntime, settings: HttpSettings) -> None:
        self._runtime, self._settings = runtime, settings

    async def tokenize(self, request: Request) -> Response:
        runtime = self._runtime.with_token(token(request))

        async def asked(fields: TokenizeFields) -> dict[str, Any]:
            found = await runtime.tokenize(fields.request(), add_special_tokens=fields.add_special_tokens)
            ids = list(found.token_ids)
            return {"count": len(ids), "max_model_len": found.context_length, "tokens": ids, "token_strs": None}

        return await self._answer(request, TokenizeFields, asked)

    async def detokenize(self, request: Request) -> Response:
        runtime = self._runtime.with_token(token(request))

        async def asked(fields: DetokenizeFields) -> dict[str, Any]:
            return {"prompt": await runtime.detokenize(fields.tokens, model=fields.model)}

        return await self._answer(request, DetokenizeFields, asked)

    async def _answer(
        self, request: Request, kind: type[_Fields], ask: Callable[[_Fields], Awaitable[dict[str, Any]]]
    ) -> Response:
        sent = await body(request, self._settings.max_body, self._settings.body_seconds)
        try:
            fields = kind.model_validate_json(sent)
        except ValidationError as error:
            raise of_body(error) from None

        async def answered() -> dict[str, Any]:
            return await ask(fields)

        try:
            return JSONResponse(await while_there(request, answered()))
        except KolmError as error:
            raise of_kolm(error, {"token_ids": "tokens", "messages.tools[].": "].function."}) from error
