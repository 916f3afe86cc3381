"""Parts that composition roots share: logs, settings, memory, outages of other services, exit codes.

Logs go to stderr, one line a record, as text for people or as JSON for machines. Fields go in `extra={"event": {...}}`;
the request's id comes from the task. Prompts and outputs are never logged. With JSON logs, every line on stderr is
JSON: also the first and the last one, warnings, and the error that ends the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from services.client import identity
from services.client.identity import TlsFilesInvalid
from services.runtime.access import Access
from services.runtime.calls import current_request_id
from services.runtime.credentials import PrincipalsError
from services.runtime.listening import CannotListen, check_free
from services.runtime.settings import LogFormat, ServerSettings, SettingsError

_console = logging.getLogger("kolm")
_log = logging.getLogger(__name__)

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # <malloc.h>
_THRESHOLD = 128 * 1024
_Settings = TypeVar("_Settings", bound=ServerSettings)
EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def configure_logging(level: str, form: LogFormat, service: str) -> None:
    """Send every logger of this process to stderr. Called once, by a composition root."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("faiss.loader", "uvicorn.error"):  # which log attempts and process ids at level info
        logging.getLogger(name).setLevel(logging.WARNING)
    _console.setLevel(logging.INFO)
    if form == "json":
        logging.captureWarnings(True)
        sys.excepthook = lambda kind, error, trace: _log.critical("died", exc_info=(kind, error, trace))
        threading.excepthook = lambda died: _log.critical("a thread died", exc_info=died.exc_value)


def say(line: str) -> None:
    """Prints a line for the person who started the service, whatever the level: in text, the bare line."""
    _console.info(line)


class TextFormatter(logging.Formatter):
    """`12:03:55 INFO services.ledger.servicer [request id] message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == _console.name:
            return record.getMessage()
        fields = "".join(f" {key}={_shown(value)}" for key, value in _event_fields(record).items())
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
            **_event_fields(record),
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


def _event_fields(record: logging.LogRecord) -> dict[str, object]:
    event = getattr(record, "event", None)
    return dict(event) if isinstance(event, dict) else {}


def _shown(value: object) -> str:
    """A caller's words cannot begin a line of their own, or a field."""
    text = str(value)
    return text if text.isprintable() and " " not in text else json.dumps(text)


def reason(error: Exception) -> str:
    """An error's message; of an OSError the file and the cause, without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def return_large_blocks() -> None:
    """Makes glibc return large blocks to the system as soon as they are free.

    By default glibc raises the size from which it does so to 32 MiB, and keeps an arena for each of gRPC's threads:
    after a burst of large requests the process would stay as large as the burst.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _THRESHOLD)
        library.mallopt(_ARENA_MAX, 2)


class Outage:
    """`with outage: ask()` for work that is repeated: swallows `errors`, and logs each change of state.

    Code that handles the error itself calls `failed` and `recovered`. Two threads may log a line twice.
    """

    def __init__(self, log: logging.Logger, what: str, *errors: type[Exception], bugs: bool = False) -> None:
        """`what` cannot be done meanwhile, in words that follow "cannot". `bugs` swallows every other error, too; the
        line has its traceback then.
        """
        self._log, self._what, self._errors, self._bugs = log, what, errors, bugs
        self._goes_on = False

    def failed(self, error: Exception, traceback: Exception | None = None) -> None:
        """Note a failure. The first one of an outage is logged, with `traceback`."""
        if not self._goes_on:
            self._log.warning("cannot %s, tried again until it works: %s", self._what, error, exc_info=traceback)
        self._goes_on = True

    def recovered(self) -> None:
        """Note a success. The first one after an outage is logged."""
        if self._goes_on:
            self._log.info("can %s again", self._what)
        self._goes_on = False

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        if error is None:
            self.recovered()
        elif isinstance(error, self._errors):
            self.failed(error)
        elif self._bugs and isinstance(error, Exception):
            self.failed(error, traceback=error)
        else:
            return False
        return True


class CannotStart(Exception):
    """A service cannot be brought up; the message is for the person who started it, without a traceback."""


def run_service(
    settings_class: type[_Settings],
    main: Callable[[_Settings], Coroutine[Any, Any, None]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Load settings, set up logging, run `main` to its end; returns the process's exit code."""
    try:
        settings = settings_class.load(sys.argv[1:] if arguments is None else arguments)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    configure_logging(settings.log_level, settings.log_format, settings.service_name())
    for line in settings_class.unread_variables():
        _log.warning(line)
    settings.client_tls.for_process()
    try:
        _check_listening(settings)
        access_of(settings)
        set_process_identity(settings.token_file)
        asyncio.run(main(settings))
    except (CannotStart, CannotListen, TlsFilesInvalid) as error:
        say(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:  # before serving began; later a signal is the normal end
        return EXIT_INTERRUPTED
    finally:
        gc.freeze()  # the process ends: to look through all that torch has imported for garbage once more takes seconds
    return EXIT_OK


def access_of(settings: ServerSettings, local: str | None = None) -> Access:
    """The callers' access; `local` is the token of this start, if there are no principals.

    Raises CannotStart for a file of principals that cannot be used.
    """
    try:
        return Access(settings.principals, local=local)
    except PrincipalsError as error:
        raise CannotStart(f"--principals: {error}") from None


def set_process_identity(file: Path | None) -> None:
    """Set the identity of the process, which its clients read (`services.client.identity`). Raises CannotStart.

    Without a file the process has no identity, even if this user's token could be found.
    """
    if file is not None:
        try:
            file.read_bytes()
        except OSError as error:
            raise CannotStart(f"--token-file: cannot read {file}: {error.strerror}") from None
        identity.set_process_token(None, file)
    elif identity.TOKEN_FILE not in os.environ:
        os.environ.setdefault(identity.TOKEN, "")


def _check_listening(settings: ServerSettings) -> None:
    """Check addresses and TLS files before `main`, which may load a model. Raises CannotListen, TlsFilesInvalid."""
    if settings.server_tls is not None:
        settings.server_tls.context()
    settings.client_tls.context()
    check_free(settings.listen)
    if settings.metrics_port is not None:
        check_free(f"{settings.listen.rpartition(':')[0]}:{settings.metrics_port}")
