"""A real server on a loopback port for tests of real stubs: its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from services.runtime.access import Access
from services.runtime.limits import Limits
from services.runtime.listening import ServerTls
from services.runtime.metrics import EXPORTED, Exporter
from services.runtime.server import Mount, RunningServer, start_server
from tests.access import everybody


@dataclass(frozen=True)
class Served:
    """A running server and the loop it runs on; `on_loop` runs something there and waits for it."""

    address: str
    server: RunningServer
    loop: asyncio.AbstractEventLoop
    registry: CollectorRegistry

    def on_loop(self, call: Callable[[], object]) -> None:
        async def run() -> None:
            result = call()
            if asyncio.iscoroutine(result):
                await result

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(timeout=60)


@contextmanager
def serving(
    *mounts: Mount,
    on_drain: Callable[[], None] = lambda: None,
    access: Access | None = None,
    tls: ServerTls | None = None,
    limits: Limits | None = None,
) -> Iterator[Served]:
    """Serve `mounts` on a free port while inside; then drain and stop, as `lifecycle.serve` does.

    Without `access`, everybody may do everything.
    """
    started: Future[Served] = Future()
    finish = threading.Event()

    async def life() -> None:
        registry = CollectorRegistry()
        server = await start_server(mounts, "127.0.0.1:0", registry, access or everybody(), tls, limits)
        started.set_result(Served(server.address, server, asyncio.get_running_loop(), registry))
        await asyncio.to_thread(finish.wait)
        await server.drain()
        on_drain()
        await server.stop(5.0)

    def run() -> None:
        try:
            asyncio.run(life())
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    thread = threading.Thread(target=run, name="server under test")
    thread.start()
    try:
        yield started.result(timeout=60)
    finally:
        finish.set()
        thread.join(timeout=60)
        assert not thread.is_alive(), "the server under test did not stop"


def exported(registry: CollectorRegistry) -> set[str]:
    """The names of its metrics, those without a value yet too."""
    return {family.name for family in registry.collect()}


def listed(*exporters: Exporter) -> set[str]:
    return {metric.name for exporter in exporters for metric in EXPORTED[exporter]}
