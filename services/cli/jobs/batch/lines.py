"""The lines of a batch: requests in OpenAI's format, read one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.failures.exits import UsageError
from services.http.calls.dialect import Dialect
from services.http.completions.chat import Chat, ChatFields
from services.http.completions.text import Text, TextFields
from services.http.responses.response_fields import ResponseFields
from services.http.responses.responses import Responses

_URLS: dict[str, Callable[[Any], Dialect]] = {
    "/v1/chat/completions": lambda body: Chat(ChatFields.model_validate_json(body)),
    "/v1/responses": lambda body: Responses(ResponseFields.model_validate_json(body)),
    "/v1/completions": lambda body: Text(TextFields.model_validate_json(body)),
}
_MEMBERS = {"custom_id", "method", "url", "body"}
_LONGEST_ID = 512  # characters


class LineInvalid(Exception):
    """A line that is no request. `code` and `param` as in OpenAI's errors."""

    def __init__(self, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.code, self.param = message, code, param


@dataclass(frozen=True, slots=True)
class BatchLine:
    """`number` counts from 1. `custom_id` is None if it cannot be read; `invalid` says why the line is no request."""

    number: int
    custom_id: str | None
    dialect: Callable[[], Dialect] | None = None  # raises ValidationError for a body that is none
    invalid: LineInvalid | None = None

    @property
    def key(self) -> str | int:
        """Its identity among the lines of a batch."""
        return self.number if self.custom_id is None else self.custom_id


def count_lines(path: Path) -> int:
    """Raises UsageError where the file cannot be read."""
    try:
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; expected a file with a request in each line") from None


def read_lines(path: Path) -> Iterator[BatchLine]:
    """The lines that are not blank. Each holds its own fault, if any, such as an id that an earlier one has."""
    seen = set[str]()
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            line = _line(number, raw)
            if line.custom_id is not None and line.custom_id in seen:
                message = f"custom_id: {line.custom_id!r} is that of an earlier line"
                line = BatchLine(number, None, invalid=LineInvalid(message, "duplicate_custom_id", "custom_id"))
            elif line.custom_id is not None:
                seen.add(line.custom_id)
            yield line


def _line(number: int, raw: bytes) -> BatchLine:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return BatchLine(number, None, invalid=LineInvalid(f"the line is not JSON: {error}", "invalid_json_line"))
    found = value.get("custom_id") if isinstance(value, dict) else None
    custom_id = found if isinstance(found, str) and 0 < len(found) <= _LONGEST_ID else None
    try:
        return BatchLine(number, custom_id, _dialect(value, custom_id))
    except LineInvalid as error:
        return BatchLine(number, custom_id, invalid=error)


def _dialect(value: Any, custom_id: str | None) -> Callable[[], Dialect]:
    if not isinstance(value, dict):
        raise LineInvalid("expected an object with custom_id, method, url and body", "invalid_request")
    if custom_id is None:
        message = f"custom_id: expected a text of 1 to {_LONGEST_ID} characters"
        raise LineInvalid(message, "missing_required_parameter", "custom_id")
    if unknown := value.keys() - _MEMBERS:
        name = min(unknown)[:80]
        raise LineInvalid(f"{name}: expected custom_id, method, url and body alone", "unknown_parameter", name)
    if value.get("method") != "POST":
        raise LineInvalid("method: expected POST", "invalid_method", "method")
    read = _URLS.get(url) if isinstance(url := value.get("url"), str) else None
    if read is None:
        raise LineInvalid(f"url: expected {' or '.join(_URLS)}", "invalid_url", "url")
    body = value.get("body")
    if not isinstance(body, dict):
        raise LineInvalid("body: expected an object", "missing_required_parameter", "body")
    if body.get("stream"):
        raise LineInvalid("body.stream: a batch answers whole; leave it out", "invalid_value", "body.stream")
    return lambda: read(json.dumps(body))
