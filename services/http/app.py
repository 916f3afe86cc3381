"""The HTTP front: its routes, and its errors in OpenAI's shape."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ledger.keys.trusted_keys import TrustedKeys
from services.client import AsyncRuntime
from services.client.errors import KolmError
from services.http import chat_page
from services.http.calls.admission import Admission
from services.http.calls.api_error import ApiError, of_kolm
from services.http.calls.caller import Callers, Gate
from services.http.calls.endpoint import Endpoint
from services.http.completions.chat import Chat, ChatFields
from services.http.completions.text import Text, TextFields
from services.http.models import Models
from services.http.openapi import openapi
from services.http.responses.response_fields import ResponseFields
from services.http.responses.responses import Responses
from services.http.settings import HttpSettings
from services.http.tokens import Tokens

_log = logging.getLogger(__name__)

_OPEN = ("/health", "/metrics", *chat_page.OPEN)
"""Open to everybody: they show nothing that is served. The page asks for a token itself."""


def http_app(
    runtime: AsyncRuntime,
    settings: HttpSettings,
    trusted: TrustedKeys | None = None,
    registry: CollectorRegistry | None = None,
) -> ASGIApp:
    """A client of the generation server behind `runtime`; keeps nothing. The chat page holds receipts against
    `trusted`, /metrics shows `registry`.
    """
    registry = registry or CollectorRegistry()
    chat = Endpoint(runtime, settings, lambda body: Chat(ChatFields.model_validate_json(body)))
    text = Endpoint(runtime, settings, lambda body: Text(TextFields.model_validate_json(body)))
    responses = Endpoint(runtime, settings, lambda body: Responses(ResponseFields.model_validate_json(body)))
    tokens, models = Tokens(runtime, settings), Models(runtime)

    async def health(_: Request) -> Response:
        serving = await runtime.serving()
        return JSONResponse({"status": "ok" if serving else "unavailable"}, 200 if serving else 503)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def described(_: Request) -> Response:
        return JSONResponse(openapi())

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat.answer, methods=["POST"]),
            Route("/v1/completions", text.answer, methods=["POST"]),
            Route("/v1/responses", responses.answer, methods=["POST"]),
            Route("/tokenize", tokens.tokenize, methods=["POST"]),
            Route("/detokenize", tokens.detokenize, methods=["POST"]),
            Route("/v1/models", models.all),
            Route("/v1/models/{model:path}", models.one),
            Route("/health", health),
            Route("/openapi.json", described),
            Route("/metrics", metrics),
            *chat_page.routes(trusted or TrustedKeys(), settings.explorer_url),
        ],
        exception_handlers={ApiError: _failed, KolmError: _failed, HTTPException: _failed, Exception: _bug},
    )
    return _across_origins(
        Gate(Admission(app, settings.max_requests), Callers(runtime), _OPEN), settings.allowed_origin
    )


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
        expose_headers=["x-receipt-id", "retry-after"],
    )


def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, KolmError):
        error = of_kolm(error, {})
    if isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path}: {error.detail}"
        answer = ApiError(error.status_code, message, error.detail.lower().replace(" ", "_")).response()
        answer.headers.update(error.headers or {})
        return answer
    assert isinstance(error, ApiError)
    if error.status >= 500:
        _log.error("cannot answer: %s", error.message)
    return error.response()


def _bug(_: Request, error: Exception) -> Response:
    """Starlette raises it again once this has been sent, and it comes into the log."""
    return ApiError(500, "internal error; the front's log has it", "internal_error").response()
