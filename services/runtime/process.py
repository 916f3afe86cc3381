"""Parts that composition roots share: settings, logging, memory, outages of others, exit codes."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from services.client.connection import token
from services.client.connection.tls import TlsFilesInvalid
from services.runtime.access.access import Access
from services.runtime.access.credentials import PrincipalsError
from services.runtime.listening import CannotListen, check_free
from services.runtime.logs import configure_logging, say
from services.runtime.settings.settings import ServerSettings, SettingsError
from services.runtime.telemetry.tracing import TracingNotInstalled, exported_traces

_log = logging.getLogger(__name__)


def reason(error: Exception) -> str:
    """An error's message; of an OSError the file and the cause, without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # <malloc.h>
_THRESHOLD = 128 * 1024


def return_large_blocks() -> None:
    """From here on large blocks go back to the system as soon as they are free.

    By itself glibc raises the size from which that is so to 32 MiB, and keeps an arena for each of gRPC's threads:
    after a burst of large requests the process would stay as large as the burst.
    """
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _THRESHOLD)
        library.mallopt(_ARENA_MAX, 2)


class Outage:
    """`with outage: ask()` for work that is tried again and again: swallows `errors`, and logs each change of state.

    Where the error has to go on, `failed` and `works` tell it. Two threads at once may cost a line too many.
    """

    def __init__(self, log: logging.Logger, what: str, *errors: type[Exception], bugs: bool = False) -> None:
        """`what` cannot be done meanwhile, in words that follow "cannot". `bugs` swallows every other error, too; the
        line has its traceback then.
        """
        self._log, self._what, self._errors, self._bugs = log, what, errors, bugs
        self._goes_on = False

    def failed(self, error: Exception, traceback: Exception | None = None) -> None:
        """Once more. `traceback` goes into the log where this is the first time."""
        if not self._goes_on:
            self._log.warning("cannot %s, tried again until it works: %s", self._what, error, exc_info=traceback)
        self._goes_on = True

    def works(self) -> None:
        """It does, perhaps again."""
        if self._goes_on:
            self._log.info("can %s again", self._what)
        self._goes_on = False

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        if error is None:
            self.works()
        elif isinstance(error, self._errors):
            self.failed(error)
        elif self._bugs and isinstance(error, Exception):
            self.failed(error, traceback=error)
        else:
            return False
        return True


_Settings = TypeVar("_Settings", bound=ServerSettings)

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


class CannotStart(Exception):
    """A service cannot be brought up; the message is for the person who started it, without a traceback."""


def run_service(
    settings_class: type[_Settings],
    main: Callable[[_Settings], Awaitable[None]],
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
        show_token(settings.token_file)
        with exported_traces(settings.service_name(), settings.traces):
            asyncio.run(_awaited(main(settings)))
    except (CannotStart, CannotListen, TlsFilesInvalid, TracingNotInstalled) as error:
        say(str(error))
        return EXIT_FAILED
    except KeyboardInterrupt:  # before serving began; later a signal is the normal end
        return EXIT_INTERRUPTED
    finally:
        gc.freeze()  # the process ends: to look through all that torch has imported for garbage once more takes seconds
    return EXIT_OK


def access_of(settings: ServerSettings, local: str | None = None) -> Access:
    """The callers' access; `local` is the token of this start, where there are no principals.

    Raises CannotStart for a file of principals that cannot be used.
    """
    try:
        return Access(settings.principals, local=local)
    except PrincipalsError as error:
        raise CannotStart(f"--principals: {error}") from None


def show_token(file: Path | None) -> None:
    """Gives the process its identity, which its clients read (`services.client.connection.token`). Raises CannotStart.

    A service that was told of none has none, also where a person's token could be found.
    """
    if file is not None:
        try:
            file.read_bytes()
        except OSError as error:
            raise CannotStart(f"--token-file: cannot read {file}: {error.strerror}") from None
        token.show(None, file)
    elif token.TOKEN_FILE not in os.environ:
        os.environ.setdefault(token.TOKEN, "")


def _check_listening(settings: ServerSettings) -> None:
    """Before `main`, which may load a model first. Raises CannotListen, TlsFilesInvalid."""
    if settings.server_tls is not None:
        settings.server_tls.context()
    settings.client_tls.context()
    check_free(settings.listen)
    if settings.metrics_port is not None:
        check_free(f"{settings.listen.rpartition(':')[0]}:{settings.metrics_port}")


async def _awaited(work: Awaitable[None]) -> None:
    await work
