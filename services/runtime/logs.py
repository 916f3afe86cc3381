"""Structured logging to stderr: one line a record, as text for people or as JSON for machines.

Fields go in `extra={"event": {...}}`; the request's id comes from the task. Prompts and outputs are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from services.runtime.request_context import current_request_id

LogFormat = Literal["text", "json"]


def configure_logging(level: str, form: LogFormat) -> None:
    """Send every logger of this process to stderr. Called once, by a composition root."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # tells at info which of its libraries it tried


class TextFormatter(logging.Formatter):
    """`12:03:55 INFO services.ledger.servicer [request id] message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        time = _time(record).strftime("%H:%M:%S")
        line = f"{time} {record.levelname} {record.name} [{current_request_id.get()}] {record.getMessage()}{fields}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, request_id, message, the event's fields, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            **_fields(record),
            "time": _time(record).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "request_id": current_request_id.get(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    event = getattr(record, "event", None)
    return dict(event) if isinstance(event, dict) else {}
