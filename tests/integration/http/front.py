"""The HTTP front on a port of its own, on the event loop of the test, with OpenAI's client before it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import uvicorn
from starlette.types import ASGIApp

from ledger.keys.trusted_keys import TrustedKeys
from services.client.generation.runtime import AsyncRuntime
from services.http.app import http_app
from services.http.settings import HttpSettings
from services.runtime.http.serving import Connections


@dataclass(frozen=True)
class Front:
    """Its address, and a client without retries."""

    port: int
    client: openai.AsyncOpenAI

    async def raw(self, head: str, body: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which a request has been sent; `head` without the host's line and the empty one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{head}\r\nhost: 127.0.0.1\r\n\r\n".encode() + body)
        await writer.drain()
        return reader, writer


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def fronting(
    generation: str,
    trusted: TrustedKeys | None = None,
    api_key: str = "any",
    connections: Connections | None = None,
    **changes: Any,
) -> AsyncIterator[Front]:
    """The front before a generation server's address; `changes` are settings."""
    settings = HttpSettings(generation=generation, **changes)
    async with (
        AsyncRuntime.connect(generation) as runtime,
        answering(http_app(runtime, settings, trusted), connections or Connections()) as port,
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key=api_key,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        ) as client,
    ):
        yield Front(port, client)


@asynccontextmanager
async def answering(app: ASGIApp, connections: Connections) -> AsyncIterator[int]:
    """The port on which `app` answers."""
    server = _Server(
        uvicorn.Config(
            app,
            http=connections.protocol(),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving
