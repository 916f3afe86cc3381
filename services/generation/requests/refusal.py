"""Why a request was not taken: the engine's errors as those that callers see, and as the metrics have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.generation.engine.engine_error import (
    ContextExceeded,
    EngineError,
    EngineFull,
    EngineStopped,
    InvalidRequest,
)
from services.runtime.errors import InvalidArgument, KolmError, ResourceExhausted, Unavailable

CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"
"""OpenAI's name. Routers know by it, or by the words "this model's maximum context length", to ask another model."""
_FULL_RETRY_SECONDS = 1.0


def refusal(error: KolmError | EngineError) -> str | None:
    """For want of what a request was not taken, as the metrics have it; None for one that is wrong in itself."""
    if isinstance(error, InvalidRequest):
        return None
    if isinstance(error, EngineError):
        return "queue_full" if isinstance(error, EngineFull) else "engine_stopped"
    quota = error.metadata.get("quota")
    return error.reason.lower() if quota is None else f"quota_{quota}"


@contextmanager
def engine_errors(input_field: str) -> Iterator[None]:
    """Maps every EngineError raised inside. `input_field` is where the prompt was: `prompt`, `messages`, …"""
    try:
        yield
    except InvalidRequest as error:
        reason = CONTEXT_LENGTH_EXCEEDED if isinstance(error, ContextExceeded) else None
        raise InvalidArgument(_path(error.field, input_field), error.message, reason=reason) from error
    except EngineFull as error:
        raise ResourceExhausted(error.message, retry_after=_FULL_RETRY_SECONDS) from error
    except EngineStopped as error:
        raise Unavailable(error.message, reason="ENGINE_STOPPED") from error


def _path(field: str, input_field: str) -> str:
    """The engine's name of a field as the path in the request."""
    if field in ("prompt", "token_ids"):
        return input_field
    if field == "adapter":
        return field
    return f"spec_decode.{field}" if field == "method" else f"sampling.{field}"
