"""The HTTP front: its routes, its errors in OpenAI's shape, the chat page, and lookups of models and tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from base64 import b64encode
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from ledger.keys.trusted_keys import TrustedKeys
from services.client.errors import KolmError
from services.client.generation.request import Request as GenerationRequest
from services.client.generation.runtime import AsyncRuntime
from services.http.api_error import RECEIPTS, ApiError, of_kolm
from services.http.calls import (
    Admission,
    Callers,
    Endpoint,
    Gate,
    Interruptible,
    Interruption,
    read_fields,
    token,
    while_there,
)
from services.http.completions import (
    CHAT_TOOLS,
    ChatDialect,
    ChatFields,
    ChatMessage,
    Continuation,
    TextDialect,
    TextFields,
    placed,
)
from services.http.fields import Strict, only, turn_names
from services.http.message_answer import MessageDialect
from services.http.message_fields import MessageFields, PromptFields
from services.http.response_answer import ResponseDialect
from services.http.response_fields import ResponseFields
from services.http.settings import HttpSettings
from services.http.tool_fields import NestedFunction, tools_of
from services.runtime.http.browsers import HEADERS, SecurityHeaders, file_names, static_files
from services.runtime.metrics import Metrics, kolm_version

_log = logging.getLogger(__name__)

_FILES = Path(__file__).parent / "page"
PAGE_PATHS = ("/", "/page.json", *(f"/page/{name}" for name in file_names(_FILES)))

_Value = TypeVar("_Value")
_LOOKUPS = {"/v1/models": "The model that is served", "/health": "Whether the generation server serves"}
_ASK_SECONDS = 2.0

_OPEN = ("/health", "/metrics", *PAGE_PATHS)
"""Paths without access control: they show no served data. The page asks for a token itself."""


def _page_routes(trusted: TrustedKeys, explorer_url: str | None) -> list[BaseRoute]:
    """`trusted` may change while this serves. `explorer_url` is the auditor's page."""

    async def page(_: Request) -> Response:
        return FileResponse(_FILES / "chat.html", headers=HEADERS | {"cache-control": "no-store"})

    async def known(_: Request) -> Response:
        keys = [b64encode(key.raw).decode() for key in trusted.keys("receipts")]
        page_settings = {"keys": keys, "scopes": trusted.scopes("receipts"), "explorer": explorer_url}
        return JSONResponse(page_settings, headers={"cache-control": "no-store"})

    return [Route("/", page), Route("/page.json", known), Mount("/page", SecurityHeaders(static_files(_FILES)))]


async def _models(runtime: AsyncRuntime, request: Request) -> Response:
    """The model, alone or in a list of one, with OpenAI's members and Anthropic's. Asks the generation server each
    time, which may have been restarted with another model. The time of creation is unknown, and so the beginning of
    Unix time, as in Anthropic's API. Raises ApiError for another model.
    """
    info, asked = await runtime.with_token(token(request)).model_info(), request.path_params.get("model")
    if asked not in (None, info.model, info.base_cid):
        raise ApiError(404, f"no model {asked!r}; {info.model} is served", "model_not_found", param="model")
    names = ("base_cid", "profile_cid", "context_length", "methods", "adapters")
    own = {name: getattr(info, name) for name in names}
    model = {
        "id": info.model, "object": "model", "created": 0, "owned_by": "kolm", "kolm": own,
        "type": "model", "display_name": info.model, "created_at": "1970-01-01T00:00:00Z",
    }  # fmt: skip
    if asked is not None:
        return JSONResponse(model)
    pages = {"has_more": False, "first_id": info.model, "last_id": info.model}
    return JSONResponse({"object": "list", "data": [model], **pages})


class TokenizeFields(Continuation):
    """A prompt or messages; exactly one."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] | None = None
    tools: Annotated[list[NestedFunction], Field(fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: Annotated[Any, only(False)] = None

    def request(self) -> GenerationRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "prompt: expected prompt or messages, one of them", "invalid_value", param="prompt")
        name = "continue_final_message" if self.messages is None else "add_special_tokens"
        if getattr(self, name):
            other = "messages" if self.messages is None else "a prompt"
            raise ApiError(400, f"{name}: belongs to {other}; leave it out", "invalid_value", param=name)
        tools = tools_of(self.tools, None, None)
        if self.messages is None:
            return GenerationRequest(prompt=self.prompt, model=self.model, tools=tools)
        turns, continued = [each.message for each in placed(self.messages)], bool(self.continue_final_message)
        return GenerationRequest(messages=turns, model=self.model, tools=tools, continue_final_message=continued)

    def names(self) -> dict[str, str]:
        """The caller's names of turns and tools, by the generation server's."""
        return CHAT_TOOLS | turn_names(placed(self.messages or ()))


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
        fields = await read_fields(request, TokenizeFields, self._settings)
        asking = runtime.tokenize(fields.request(), add_special_tokens=fields.add_special_tokens)
        found = await _asked(request, asking, fields.names())
        ids = list(found.token_ids)
        answer = {"count": len(ids), "max_model_len": found.context_length, "tokens": ids, "token_strs": None}
        return JSONResponse(answer)

    async def count(self, request: Request) -> Response:
        """Anthropic's count_tokens."""
        runtime = self._runtime.with_token(token(request))
        fields = await read_fields(request, PromptFields, self._settings)
        found = await _asked(request, runtime.tokenize(fields.prompt()), fields.names())
        return JSONResponse({"input_tokens": len(found.token_ids)})

    async def detokenize(self, request: Request) -> Response:
        runtime = self._runtime.with_token(token(request))
        fields = await read_fields(request, DetokenizeFields, self._settings)
        asking = runtime.detokenize(fields.tokens, model=fields.model)
        return JSONResponse({"prompt": await _asked(request, asking, {"token_ids": "tokens"})})


async def _asked(request: Request, asking: Coroutine[Any, Any, _Value], names: Mapping[str, str]) -> _Value:
    try:
        return await while_there(request, asking)
    except KolmError as error:
        raise of_kolm(error, names) from error


_BODIES: dict[str, tuple[type[BaseModel], str]] = {
    "/v1/chat/completions": (ChatFields, "A conversation, whole or as server-sent events"),
    "/v1/completions": (TextFields, "A prompt, whole or as server-sent events"),
    "/v1/responses": (ResponseFields, "A response, whole or as named events"),
    "/v1/messages": (MessageFields, "A message of Anthropic's API, whole or as named events"),
    "/v1/messages/count_tokens": (PromptFields, "How many tokens a message's prompt has"),
    "/tokenize": (TokenizeFields, "Which tokens a prompt or messages are"),
    "/detokenize": (DetokenizeFields, "The text of tokens"),
}


def openapi() -> dict[str, Any]:
    """OpenAPI 3.1. Answers are OpenAI's and vLLM's, and are not described again."""
    models = [(model, "validation") for model, _ in _BODIES.values()]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    return {
        "openapi": "3.1.0",
        "info": {"title": "kolm", "version": kolm_version()},
        "paths": {path: {"post": _post(model, what)} for path, (model, what) in _BODIES.items()}
        | {path: {"get": {"summary": what, "responses": _responses(503)}} for path, what in _LOOKUPS.items()},
        "components": {"schemas": schemas["$defs"]},
    }


def _post(model: type[BaseModel], what: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        "summary": what,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": _responses(400, 404, 408, 413, 415, 429, 502, 503),
    }


def _responses(*errors: int) -> dict[str, Any]:
    described = {200: "The answer"} | dict.fromkeys(errors, "An error in OpenAI's shape")
    return {str(status): {"description": what} for status, what in described.items()}


async def _load(runtime: AsyncRuntime) -> bytes:
    """The metrics by which routers choose a server of OpenAI's API; empty if the generation server is away, or refuses
    the front's own token.
    """
    try:
        load, info = await asyncio.gather(runtime.load(_ASK_SECONDS), runtime.model_info(_ASK_SECONDS))
    except KolmError:
        return b""
    registry = CollectorRegistry()
    metrics, adapters = Metrics(registry), list(info.adapters)
    metrics.gauge("vllm:num_requests_running").labels(info.model).set(load.running)
    metrics.gauge("vllm:num_requests_waiting").labels(info.model).set(load.waiting)
    metrics.gauge("vllm:kv_cache_usage_perc").labels(info.model).set(load.blocks_used / max(load.blocks_total, 1))
    metrics.gauge("vllm:lora_requests_info").labels(str(len(adapters)), ",".join(adapters), "").set(time.time())
    return generate_latest(registry)


def http_app(
    runtime: AsyncRuntime,
    settings: HttpSettings,
    trusted: TrustedKeys | None = None,
    registry: CollectorRegistry | None = None,
    interruption: Interruption | None = None,
) -> ASGIApp:
    """A client of the generation server of `runtime`, without state. The chat page checks receipts by the keys
    `trusted`, /metrics shows `registry`, `interruption` ends running calls.
    """
    registry, interruption = registry or CollectorRegistry(), interruption or Interruption()
    chat = Endpoint(runtime, settings, interruption, ChatFields, ChatDialect)
    text = Endpoint(runtime, settings, interruption, TextFields, TextDialect)
    responses = Endpoint(runtime, settings, interruption, ResponseFields, ResponseDialect)
    messages = Endpoint(runtime, settings, interruption, MessageFields, MessageDialect)
    tokens, models = Tokens(runtime, settings), partial(_models, runtime)

    async def health(_: Request) -> Response:
        serving = await runtime.serving()
        return JSONResponse({"status": "ok" if serving else "unavailable"}, 200 if serving else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry) + await _load(runtime), media_type=CONTENT_TYPE_LATEST)

    async def described(_: Request) -> Response:
        return JSONResponse(openapi())

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat.answer, methods=["POST"]),
            Route("/v1/completions", text.answer, methods=["POST"]),
            Route("/v1/responses", responses.answer, methods=["POST"]),
            Route("/v1/messages", messages.answer, methods=["POST"]),
            Route("/v1/messages/count_tokens", tokens.count, methods=["POST"]),
            Route("/tokenize", tokens.tokenize, methods=["POST"]),
            Route("/detokenize", tokens.detokenize, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", models),
            Route("/health", health),
            Route("/openapi.json", described),
            Route("/metrics", metrics),
            *_page_routes(trusted or TrustedKeys(), settings.explorer_url),
        ],
        exception_handlers={ApiError: _failed, KolmError: _failed, HTTPException: _failed, Exception: _bug},
    )
    gate = Gate(Admission(app, settings.max_requests), Callers(runtime), _OPEN)
    return _across_origins(Interruptible(gate, interruption), settings.allowed_origin)


def _across_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Lets pages of other sites call. Outside of the gate: a browser's preflight request brings no token."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # OpenAI's client sends a dozen of its own
        allow_private_network=True,  # a page of the open network may name this machine
        expose_headers=[RECEIPTS, "retry-after"],
    )


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, KolmError):
        error = of_kolm(error, {})
    if isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path}: {error.detail}"
        answer = ApiError(error.status_code, message, error.detail.lower().replace(" ", "_")).response(request.url.path)
        answer.headers.update(error.headers or {})
        return answer
    assert isinstance(error, ApiError)
    if error.status >= 500:
        _log.error("failing to answer: %s", error.message)
    return error.response(request.url.path)


def _bug(request: Request, error: Exception) -> Response:
    """The answer to an unexpected error. Starlette raises the error again after it, so that it is logged."""
    return ApiError(500, "internal error; the front's log has it", "internal_error").response(request.url.path)
