"""Connections: TLS between clients and servers, and HTTP calls that are bounded."""

import asyncio
import gzip
import http.client
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.client.channel import Connection
from services.client.errors import Unavailable
from services.client.generation.runtime import AsyncRuntime
from services.client.identity import ClientTls
from services.runtime.http.http_call import get, on_own_thread, post
from services.runtime.metrics import metrics_endpoint
from tests.access import Certificates
from tests.fakes.dripping_server import HEADERS, dripping
from tests.fakes.http_server import QuietHandler
from tests.integration.runtime.scripted import ScriptedServicer, mount
from tests.serving import PATIENCE, Served, serving


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def mutual(certificates: Certificates) -> Iterator[Served]:
    with serving(mount(ScriptedServicer()), tls=certificates.server(mutual=True)) as served:
        yield served


def _text(connection: Connection) -> str:
    stub = GenerationServiceStub(connection.channel)
    answer = connection.call(stub.Generate, pb.GenerateRequest(prompt="12345"), PATIENCE)
    return str(answer.choices[0].text)


def test_both_sides_show_certificates_and_the_server_sees_the_callers_names(
    mutual: Served, certificates: Certificates
) -> None:
    client = certificates.client("billing.example")
    with closing(Connection(f"https://localhost:{mutual.address.rpartition(':')[2]}", tls=client)) as connection:
        (answer,) = GenerationServiceStub(connection.channel).Generate(pb.GenerateRequest(request_id="peer")).choices
        assert answer.text == "billing.example"


@pytest.mark.parametrize("caller", ["bare", "stranger", "plain"])
def test_without_a_certificate_of_the_authority_no_caller_gets_in(
    mutual: Served, certificates: Certificates, tmp_path: Path, caller: str
) -> None:
    stranger = Certificates(tmp_path).client()
    tls = {
        "bare": ClientTls(certificates.ca),
        "stranger": ClientTls(certificates.ca, stranger.cert, stranger.key),
        "plain": ClientTls(),
    }[caller]
    with closing(Connection(mutual.address, tls=tls)) as connection, pytest.raises(Unavailable):
        _text(connection)


def test_a_server_of_another_authority_is_not_believed(mutual: Served, tmp_path: Path) -> None:
    tls = Certificates(tmp_path).client()
    with closing(Connection(mutual.address, tls=tls)) as connection, pytest.raises(Unavailable):
        _text(connection)


def test_the_process_s_own_certificate_is_used_where_none_is_named(
    mutual: Served, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.delenv(f"KOLM_TLS_{name}", raising=False)
    own = certificates.client("own")
    monkeypatch.setenv("KOLM_TLS_CA", str(own.ca))
    monkeypatch.setenv("KOLM_TLS_CERT", str(own.cert))
    monkeypatch.setenv("KOLM_TLS_KEY", str(own.key))

    async def serving() -> bool:
        async with AsyncRuntime.connect(mutual.address) as runtime:
            return await runtime.serving()

    with closing(Connection(mutual.address)) as connection:
        assert _text(connection) == "5 characters"
    assert asyncio.run(serving())


def test_a_renewed_certificate_counts_from_the_next_connection_on_and_a_broken_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(tmp_path)
    tls = certificates.server()
    with serving(mount(ScriptedServicer()), tls=tls) as served:
        first = _shown(served.address, certificates.ca)
        certificates.server()
        second = _shown(served.address, certificates.ca)
        assert second != first
        tls.cert.write_text("no certificate")
        assert _shown(served.address, certificates.ca) == second
        assert "keeping the old certificate" in caplog.text
        other = Certificates(tmp_path / "other")  # a new authority, under the same names
        assert other.server().cert.read_bytes()
        for name in ("server.key", "server.pem"):
            (tmp_path / name).write_bytes((tmp_path / "other" / name).read_bytes())
        third = _shown(served.address, other.ca)
        assert third not in (first, second)


def test_metrics_are_served_by_tls_to_callers_with_a_certificate(certificates: Certificates) -> None:
    registry = CollectorRegistry()
    Counter("seen", "Something to see.", registry=registry).inc()
    client = certificates.client()
    with metrics_endpoint(registry, "127.0.0.1", 0, certificates.server("metrics", mutual=True)) as port:
        with socket.create_connection(("127.0.0.1", port or 0)):  # a silent connection delays no other
            url = f"https://localhost:{port}/metrics"
            with urllib.request.urlopen(url, timeout=PATIENCE, context=client.context()) as page:
                assert b"seen_total 1.0" in page.read()
        without_certificate = ClientTls(certificates.ca).context()
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(url, timeout=PATIENCE, context=without_certificate)


def _shown(address: str, ca: Path) -> bytes:
    """The certificate that a server shows to a new connection."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection((host, int(port)), timeout=PATIENCE)
    with context.wrap_socket(plain, server_hostname="localhost") as connection:
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return found


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


@pytest.mark.parametrize(
    "answer",
    [
        HEADERS + b"a",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na",
        ANSWER + b"5\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"whole", mtime=0)[:-1],
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
    ],
)
def test_an_answer_that_breaks_off_is_an_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        for call in (lambda: get(url, PATIENCE, 100), lambda: post(url, b"", "text/plain", PATIENCE)):
            outcome = on_own_thread(call)
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                with pytest.raises(OSError, match="within the answer"):
                    outcome.result(PATIENCE)


def test_a_server_that_reads_nothing_is_left() -> None:
    with dripping(b"", b"") as served, pytest.raises(TimeoutError):
        post(f"http://127.0.0.1:{served.port}/", bytes(2**26), "text/plain", 0.4)


def test_an_answer_comes_over_tls(tmp_path: Path) -> None:
    certificates, asked = Certificates(tmp_path), list[bytes]()
    pair = certificates.server()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(self.headers["host"].encode()[:4])

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


def test_a_wait_on_its_own_thread_does_not_delay_the_exit() -> None:
    begun, threads = threading.Event(), list[threading.Thread]()

    def wait() -> None:
        threads.append(threading.current_thread())
        begun.set()

    on_own_thread(wait).result()
    assert begun.is_set()
    assert threads[0].daemon
    with pytest.raises(ZeroDivisionError):
        on_own_thread(lambda: 1 // 0).result()
