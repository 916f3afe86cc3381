"""Shared by composition roots: settings, logging, exit codes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from services.client.connection import token
from services.client.connection.tls import TlsFilesInvalid
from services.runtime.access.access import Access
from services.runtime.access.principals_file import PrincipalsError
from services.runtime.listening import CannotListen, check_free
from services.runtime.logs import configure_logging, say
from services.runtime.settings.settings import ServerSettings, SettingsError
from services.runtime.telemetry.trace_export import TracingNotInstalled, exported_traces

_Settings = TypeVar("_Settings", bound=ServerSettings)

_log = logging.getLogger(__name__)

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


def access_of(settings: ServerSettings) -> Access:
    """The callers' access. Raises CannotStart for a file of principals that cannot be used."""
    try:
        return Access(settings.principals)
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
