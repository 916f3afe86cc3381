"""Structured logging to stderr: one line a record, as text for people or as JSON for machines.

Fields go in `extra={"event": {...}}`; the request's id comes from the task. Prompts and outputs are never logged.
As JSON, everything that a process writes to stderr is: also its first and last line, warnings, and what it dies of.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import Literal

from services.runtime.calls.requests import current_request_id

LogFormat = Literal["text", "json"]

_SAID = logging.getLogger("kolm")
_log = logging.getLogger(__name__)


def configure_logging(level: str, form: LogFormat, service: str) -> None:
    """Send every logger of this process to stderr. Called once, by a composition root."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("faiss.loader", "uvicorn.error"):  # which tell at info what they tried, and number their process
        logging.getLogger(name).setLevel(logging.WARNING)
    _SAID.setLevel(logging.INFO)
    if form == "json":
        logging.captureWarnings(True)
        sys.excepthook = lambda kind, error, trace: _log.critical("died", exc_info=(kind, error, trace))
        threading.excepthook = lambda died: _log.critical("a thread died", exc_info=died.exc_value)


def say(line: str) -> None:
    """Prints a line for the person who started the service, whatever the level: in text, the bare line."""
    _SAID.info(line)


class TextFormatter(logging.Formatter):
    """`12:03:55 INFO services.ledger.servicer [request id] message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == _SAID.name:
            return record.getMessage()
        fields = "".join(f" {key}={_shown(value)}" for key, value in _fields(record).items())
        time = _time(record).strftime("%H:%M:%S")
        line = f"{time} {record.levelname} {record.name} [{current_request_id.get()}] {record.getMessage()}{fields}"
        return line + (f"\n{self.formatException(record.exc_info)}" if record.exc_info else "")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, service, logger, request_id, message, the event's fields, traceback."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            **_fields(record),
            "time": _time(record).isoformat(),
            "level": record.levelname,
            "service": self._service,
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


def _shown(value: object) -> str:
    """A caller's words cannot begin a line of their own, or a field."""
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)
