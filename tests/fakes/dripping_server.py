"""A server that answers every connection with some bytes, and then with a few more without end."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_PAUSE = 0.02

HEADERS = b"HTTP/1.1 200 OK\r\nX-Slow: "
"""The beginning of an answer; any letters are more of its header."""


@dataclass
class DrippingServer:
    """Its port, and its counts. `reached` is set with the first connection."""

    port: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    open: int = 0


@contextmanager
def dripping(begin: bytes = HEADERS, drop: bytes = b"a") -> Iterator[DrippingServer]:
    """A server that sends `begin`, then `drop` many times a second until the caller leaves; no drop is silence."""
    served, over, lock = DrippingServer(), threading.Event(), threading.Lock()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with lock:
                served.open += 1
            served.reached.set()
            try:
                self.request.sendall(begin)
                while not over.wait(_PAUSE):
                    self.request.sendall(drop)
            except OSError:  # the caller has left
                pass

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        served.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield served
        finally:
            over.set()
            server.shutdown()
