"""Servers in this process and in processes of their own."""

import asyncio
import functools
import http.client
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.runtime.access import Access
from services.runtime.limits import Limits
from services.runtime.listening import ServerTls
from services.runtime.metrics import EXPORTED, Exporter
from services.runtime.server import Mount, RunningServer, start_server
from tests.access import open_access
from tests.forked import Forked


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


def fetched(
    address: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body of the answer to a GET, or to a POST of `body`, by plain HTTP."""
    with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)) as connection:
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


@contextmanager
def serving(
    *mounts: Mount,
    on_drain: Callable[[], None] = lambda: None,
    access: Access | None = None,
    tls: ServerTls | None = None,
    limits: Limits | None = None,
) -> Iterator[Served]:
    """Serve `mounts` on a free port while inside; then drain and stop, as `lifecycle.serve` does.

    Without `access`, every caller may do everything.
    """
    started: Future[Served] = Future()
    finish = threading.Event()

    async def life() -> None:
        registry = CollectorRegistry()
        server = await start_server(mounts, "127.0.0.1:0", registry, access or open_access(), tls, limits)
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


_BELOW_EPHEMERAL = range(20_000, 32_768)  # Linux hands out 32768 and more, for port 0 and for outgoing connections


@functools.cache
def _own_ports() -> Iterator[int]:
    """The ports of this worker, in random order, each once."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    own = _BELOW_EPHEMERAL[int(worker.removeprefix("gw")) :: int(workers)]
    return iter(random.SystemRandom().sample(own, len(own)))


def known_port() -> int:
    """A free port of 127.0.0.1 outside the ephemeral range, so that a server may come back to it. No other test of the
    run gets it.
    """
    for port in _own_ports():
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("this worker has had all its ports")


PATIENCE = 240.0
"""Seconds that anything may take on a busy machine; only a test that fails gets there."""


@contextmanager
def started(module: str, flags: Sequence[str], ready: Path) -> Iterator[tuple[Forked, str]]:
    """The process, and the address that it has put into its ready file. Killed at the end."""
    ready.unlink(missing_ok=True)
    deadline = time.monotonic() + PATIENCE
    with Forked(module, *flags, "--ready-file", str(ready)) as process:
        while not ready.exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline, "it did not start to serve"
            time.sleep(0.02)
        yield process, ready.read_text().strip()
