"""One HTTP call, against servers that answer well, slowly, and never."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from services.runtime.http.http_call import get, on_own_thread, post
from tests.certificates import Certificates
from tests.fakes.dripping_server import HEADERS, dripping

ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "drop"),
    [
        (b"", b""),
        (b"", b"H"),
        (HEADERS, b"a"),
        (b"HTTP/1.1 200 OK\r\n", b"X-Slow: a\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"."),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08\x08\0\0\0\0\0\0", b"a"),
        (ANSWER, b"1\r\na\r\n"),
        (ANSWER + b"1;", b"a"),
        (ANSWER + b"0\r\n", b"a: b\r\n"),
    ],
)
def test_a_server_that_drips_is_left_whatever_it_drips(begin: bytes, drop: bytes) -> None:
    with dripping(begin, drop) as served:
        url = f"http://127.0.0.1:{served.port}/"
        with pytest.raises(OSError, match=r"timed out|got more than 100 headers"):
            get(url, 0.4, 10**9)
        with pytest.raises(OSError, match=r"timed out|got more than 100 headers"):
            post(url, b"x" * 2**20, "text/plain", 0.4)


def test_a_server_that_drips_its_certificate_is_left() -> None:
    with dripping(b"\x16\x03\x03\x3f\xff", b"\x02") as served, pytest.raises(TimeoutError):
        get(f"https://localhost:{served.port}/", 0.4, 100)


def test_a_server_that_reads_nothing_is_left() -> None:
    with dripping(b"", b"") as served, pytest.raises(TimeoutError):
        post(f"http://127.0.0.1:{served.port}/", bytes(2**26), "text/plain", 0.4)


def test_an_answer_comes_over_tls(tmp_path: Path) -> None:
    certificates, asked = Certificates(tmp_path), list[bytes]()
    pair = certificates.server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(self.headers["host"].encode()[:4])

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://localhost:{server.server_address[1]}/"
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            post(url, b"question", "text/plain", 30.0)
        certificates.client().for_process()
        assert post(url, b"question", "text/plain", 30.0) == (200, b"loca")
        server.shutdown()
    assert asked == [b"question"]


def test_what_waits_on_a_thread_of_its_own_keeps_nobody_from_ending() -> None:
    begun, threads = threading.Event(), list[threading.Thread]()

    def wait() -> None:
        threads.append(threading.current_thread())
        begun.set()

    on_own_thread(wait).result()
    assert begun.is_set()
    assert threads[0].daemon
    with pytest.raises(ZeroDivisionError):
        on_own_thread(lambda: 1 // 0).result()
