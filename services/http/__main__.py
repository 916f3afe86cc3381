"""`python -m services.http [--generation HOST:PORT]`: the composition root of the HTTP front."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from ledger.errors import KeyFileError
from ledger.keys.trusted_keys import TrustedKeys
from services.client.generation.runtime import AsyncRuntime
from services.http.app import http_app
from services.http.calls import Interruption
from services.http.settings import HttpSettings
from services.runtime.http.serving import Connections, serve_http, serving_http
from services.runtime.process import CannotStart, run_service
from services.runtime.trusted_directory import TrustedDirectory

_CONNECTIONS = 4  # for each request that may run: clients keep some open
_LATER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Front:
    """The arguments of the HTTP server."""

    app: ASGIApp
    registry: CollectorRegistry
    connections: Connections
    interruption: Interruption


async def main(settings: HttpSettings) -> None:
    """Serve until a signal, also while the generation server is away. Raises CannotStart."""
    async with AsyncRuntime.connect(settings.generation) as runtime:
        front = _front(settings, runtime)
        await serve_http(
            "http", front.app, settings, registry=front.registry, connections=front.connections,
            interrupt=front.interruption,
        )  # fmt: skip


def serving(settings: HttpSettings, runtime: AsyncRuntime) -> AbstractAsyncContextManager[object]:
    """A block in which the front serves within another process. Entering it raises CannotStart, CannotListen."""
    front = _front(settings, runtime)
    return serving_http("http", front.app, settings, front.registry, front.connections, front.interruption)


def _front(settings: HttpSettings, runtime: AsyncRuntime) -> _Front:
    registry, interruption = CollectorRegistry(), Interruption()
    body_seconds = settings.body_seconds + _LATER_SECONDS  # the front itself answers a slow body before
    connections = Connections(_CONNECTIONS * settings.max_requests, body_seconds=body_seconds)
    app = http_app(runtime, settings, _trusted(settings), registry, interruption)
    return _Front(app, registry, connections, interruption)


def _trusted(settings: HttpSettings) -> TrustedKeys:
    if settings.trusted_keys is None:
        return TrustedKeys()
    try:
        return TrustedDirectory(settings.trusted_keys).trusted()
    except KeyFileError as error:
        raise CannotStart(f"cannot open the HTTP front: {error}") from error


if __name__ == "__main__":
    sys.exit(run_service(HttpSettings, main))
