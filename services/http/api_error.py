"""Errors as OpenAI's clients know them, `{"error": {"message", "type", "param", "code"}}`, or Anthropic's; a status."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

from services.client import errors as client
from services.client.generation.completion import Choice, Finished
from services.http.fields import WrongMember

RECEIPTS = "x-receipt-id"
"""The header with the receipts' ids."""
CLOSED = 499
"""nginx's status for a caller that has left, for logs and metrics."""

_STATUS: dict[type[client.KolmError], int] = {
    client.InvalidArgument: 400,
    client.FailedPrecondition: 400,  # 409 would be tried again by OpenAI's clients, for nothing
    client.Unauthenticated: 401,
    client.PermissionDenied: 403,
    client.NotFound: 404,
    client.DeadlineExceeded: 408,
    client.AlreadyExists: 409,
    client.ResourceExhausted: 429,
    client.Cancelled: CLOSED,
    client.Unimplemented: 501,
    client.ReceiptMismatch: 502,
    client.Unavailable: 503,
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
NO_THREADS = "thread_unsupported_request"
"""Anthropic's code for a request that the server cannot thread: its clients go on with the whole conversation."""
MESSAGES = "/v1/messages"
"""Below this path answers Anthropic's API."""
_ANTHROPIC = {404: "not_found_error", 408: "timeout_error", 413: "request_too_large", 503: "overloaded_error"}
_TURN = re.compile(r"messages\[\d+\]")
_TOOL = re.compile(r"tools(\[\d+\])((?:\.\w+)?)")
_RETRY_SECONDS = 1  # if the generation server names no time
_LONGEST_VALUE = 80  # characters of a wrong value, or of an unknown member's name, that are shown again


class ApiError(Exception):
    """An error as an answer. `param` is the path of the wrong field of the request, or None if no single field is
    wrong; `receipt_ids` name the receipts of output that was generated nevertheless.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        receipt_ids: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.receipt_ids = tuple(receipt_ids)

    @property
    def kolm(self) -> dict[str, Any]:
        """The member `kolm`, next to `error`."""
        return {"receipts": [{"receipt_id": each} for each in self.receipt_ids]}

    def body(self, path: str = "") -> dict[str, Any]:
        """The JSON object, as the API with this path has it; a stream that has begun carries it as an event."""
        anthropic = path.startswith(MESSAGES)
        types = _TYPES | _ANTHROPIC if anthropic else _TYPES
        type_ = types.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        error: dict[str, Any] = {
            "error": {"message": self.message, "type": type_, "param": self.param, "code": self.code}
        }
        if self.code == NO_THREADS:
            error["error"]["details"] = {"error_code": NO_THREADS, "unsupported": ["thread"]}
        beside = {"kolm": self.kolm} if self.receipt_ids else {}
        return {"type": "error", **error, **beside} if anthropic else error | beside

    def response(self, path: str = "") -> JSONResponse:
        headers = {}
        if self.status in (429, 503):
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after or _RETRY_SECONDS)))
        if self.receipt_ids:
            headers[RECEIPTS] = ", ".join(self.receipt_ids)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(path), self.status, headers)


def stopping(receipt_ids: Sequence[str] = ()) -> ApiError:
    """The error for a call that a stopping front ends. The generation server signs a receipt for the output so far."""
    message = "this server is stopping; ask another one, or again when it is back. The output so far has its receipt"
    return ApiError(503, message, "server_stopping", receipt_ids=receipt_ids)


def of_kolm(error: client.KolmError, names: Mapping[str, str]) -> ApiError:
    """The answer for an error of the generation server. `names` are the caller's names of fields, by gRPC path."""
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)
    field = error.fields[0] if error.fields else error.resource
    if isinstance(error, client.NotFound) and error.resource:
        return ApiError(status, error.message, f"{error.resource}_not_found", param=_named(field, names))
    param = _named(field, names) if field else None
    message = f"{param}: {error.violations[0].description}" if error.violations else error.message
    receipts = [each for each in error.metadata.get("receipt_ids", "").split(",") if each]
    return ApiError(
        status, message, error.reason.lower(), param=param, retry_after=error.retry_after, receipt_ids=receipts
    )


def of_ending(ended: Choice | Finished, tokens: int) -> ApiError | None:
    """The error that a choice of `tokens` tokens ended with; None for a choice that ended by itself.

    Neither API has a finish reason for it: an output that the engine could not continue is no answer.
    """
    receipts = () if ended.receipt is None else (ended.receipt.receipt_id,)
    kept = f"the output so far has the receipt {receipts[0]}" if receipts else "the output so far has no receipt"
    match ended.finish_reason:
        case "error":
            message = f"the engine failed after {tokens} tokens; {kept}, the log of the generation server has the cause"
            return ApiError(500, message, "generation_failed", receipt_ids=receipts)
        case "cancelled":
            message = f"the generation server ended the output after {tokens} tokens; {kept}. Ask again"
            return ApiError(503, message, "generation_cancelled", receipt_ids=receipts)
    return None


def _named(path: str, names: Mapping[str, str]) -> str:
    """The caller's name of a field. A part without a name of its own has the name of its turn, `messages[0]`, or of
    any tool, `tools[]`, before its own path.
    """
    path = path.removeprefix("messages.") if path.startswith(("messages.messages[", "messages.tools[")) else path
    if path in names:
        return names[path]
    if path.startswith("spec_decode."):
        return "kolm." + path.removeprefix("spec_decode.")
    if (turn := _TURN.match(path)) is not None and turn[0] in names:
        return names[turn[0]] + path[turn.end() :]
    if (tool := _TOOL.match(path)) is not None:
        named = names.get(f"tools[]{tool[2]}") or names.get("tools[]", "tools[]") + tool[2]
        return named.replace("[]", tool[1]) + path[tool.end() :]
    return path.removeprefix("sampling.").removeprefix("messages.")


def of_body(error: ValidationError) -> ApiError:
    """The error for a malformed body: its first problem, by the path of its field."""
    first = error.errors(include_url=False)[0]
    param = _path(first["loc"])[:_LONGEST_VALUE] or None
    if first["type"] == "union_tag_invalid":
        got, asked = first["input"], "an object with a type of"
        if isinstance(got, dict):
            param, got, asked = f"{param}.type", got.get("type"), "one of"
        expected = ", ".join(tag for tag in re.findall("'~(.+?)'", first["ctx"]["expected_tags"]) if tag != "other")
        message = f"{param}: expected {asked} {expected}; got {_shown(got)}"
        return ApiError(400, message, "invalid_value", param=param)
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first['msg']}", "invalid_json")
    if first["type"] == "extra_forbidden":
        param = ".".join(filter(None, (_path(first["loc"][:-1]), str(first["loc"][-1]))))[:_LONGEST_VALUE]
        message = f"{param}: is not supported by kolm; leave it out"
        return ApiError(400, message, "unsupported_parameter", param=param)
    if first["type"] in ("unsupported_value", NO_THREADS):
        return ApiError(400, f"{param}: {first['msg']}", first["type"], param=param)
    if first["type"] == "missing":
        return ApiError(400, f"{param}: is missing", "missing_required_parameter", param=param)
    problem, value = first["msg"].removeprefix("Value error, "), first["input"]
    if isinstance(wrong := first.get("ctx", {}).get("error"), WrongMember):
        param, value = f"{param or ''}{wrong.path}".removeprefix("."), wrong.value
    message = f"{param or 'the body'}: {problem}; got {_shown(value)}"
    return ApiError(400, message, "invalid_value", param=param)


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:_LONGEST_VALUE]


def _path(location: tuple[int | str, ...]) -> str:
    """`messages[0].content` for ("messages", 0, "content"). Pydantic marks a wrong key by `[key]`; the tags of a union
    (`by_type`) begin with "~".
    """
    location = tuple(part for part in location if part != "[key]" and not str(part).startswith("~"))
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")
