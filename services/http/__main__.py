"""`python -m services.http [--generation HOST:PORT]`: the composition root of the HTTP front."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from ledger.errors import KeyFileError
from ledger.keys.trusted_keys import TrustedKeys
from services.client import AsyncRuntime
from services.http.app import http_app
from services.http.settings import HttpSettings
from services.runtime.http.serving import Connections, serve_http, serving_http
from services.runtime.process import CannotStart, run_service
from services.runtime.trusted_directory import TrustedDirectory

_CONNECTIONS = 4  # for each request that may run: clients keep some open
_LATER = 5.0  # seconds


async def main(settings: HttpSettings) -> None:
    """Serve until a signal. The generation server may be away: answers say so. Raises CannotStart."""
    async with AsyncRuntime.connect(settings.generation) as runtime:
        app, registry, connections = _front(settings, runtime)
        await serve_http("http", app, settings, registry=registry, connections=connections)


def serving(settings: HttpSettings, runtime: AsyncRuntime) -> AbstractAsyncContextManager[object]:
    """A block in which the front serves, in the process of others. Entering it raises CannotStart, CannotListen."""
    app, registry, connections = _front(settings, runtime)
    return serving_http("http", app, settings, registry, connections)


def _front(settings: HttpSettings, runtime: AsyncRuntime) -> tuple[ASGIApp, CollectorRegistry, Connections]:
    registry = CollectorRegistry()
    body_seconds = settings.body_seconds + _LATER  # the front itself has an answer for a slow body
    connections = Connections(_CONNECTIONS * settings.max_requests, body_seconds=body_seconds)
    return http_app(runtime, settings, _trusted(settings), registry), registry, connections


def _trusted(settings: HttpSettings) -> TrustedKeys:
    if settings.trusted_keys is None:
        return TrustedKeys()
    try:
        return TrustedDirectory(settings.trusted_keys).trusted()
    except KeyFileError as error:
        raise CannotStart(f"cannot open the HTTP front: {error}") from error


if __name__ == "__main__":
    sys.exit(run_service(HttpSettings, main))
