"""`/openapi.json`: the requests of the front, from the models that check them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from services.http.completions.chat import ChatFields
from services.http.completions.text import TextFields
from services.http.responses.response_fields import ResponseFields
from services.http.tokens import DetokenizeFields, TokenizeFields

_BODIES: dict[str, tuple[type[BaseModel], str]] = {
    "/v1/chat/completions": (ChatFields, "A conversation, whole or as server-sent events"),
    "/v1/completions": (TextFields, "A prompt, whole or as server-sent events"),
    "/v1/responses": (ResponseFields, "A response, whole or as named events"),
    "/tokenize": (TokenizeFields, "Which tokens a prompt or messages are"),
    "/detokenize": (DetokenizeFields, "The text of tokens"),
}
_LOOKUPS = {
    "/v1/models": "The model that is served",
    "/health": "Whether the generation server serves",
}


def openapi() -> dict[str, Any]:
    """OpenAPI 3.1. Answers are OpenAI's and vLLM's, and are not described again."""
    models = [(model, "validation") for model, _ in _BODIES.values()]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    return {
        "openapi": "3.1.0",
        "info": {"title": "kolm", "version": version("kolm-serve")},
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
