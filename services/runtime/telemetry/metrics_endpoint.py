"""Metrics over HTTP, beside the calls: a few connections at a time, each bounded in time."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from services.runtime.listening import CannotListen
from services.runtime.tls import ServerTls

_CONNECTIONS = 16
_SECONDS = 10.0
"""How long a connection may send or take nothing, its handshake included."""


@contextmanager
def metrics_endpoint(
    registry: CollectorRegistry, host: str, port: int | None, tls: ServerTls | None = None
) -> Iterator[int | None]:
    """In this block serve `registry` at http(s)://host:port/metrics; yields the bound port. Port None serves nothing.

    Raises CannotListen, TlsFilesInvalid.
    """
    if port is None:
        yield None
        return
    context = None if tls is None else tls.context()
    try:
        server = (_Server6 if ":" in host else _Server)(host, port, context)
    except OSError:
        raise CannotListen(f"{host}:{port}") from None
    server.set_app(make_wsgi_app(registry))
    thread = threading.Thread(target=server.serve_forever, name="metrics")
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(WSGIRequestHandler):
    timeout = _SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, few of them; one more is closed at once."""

    daemon_threads = True

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        super().__init__((host, port), _Handler)
        self._context = context
        self._places = threading.BoundedSemaphore(_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(self._with_tls(request), client_address)
        except OSError:  # no TLS, or a caller without a certificate of the authority
            self.shutdown_request(request)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers that leave or dawdle are nobody's concern."""

    def _with_tls(self, connection: socket.socket) -> socket.socket:
        """In the connection's thread: in the server's own, one slow handshake would hold up everybody else."""
        connection.settimeout(_SECONDS)
        return connection if self._context is None else self._context.wrap_socket(connection, server_side=True)


class _Server6(_Server):
    address_family = socket.AF_INET6
