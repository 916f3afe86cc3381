"""TLS of every kind of server, with real handshakes."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from kolm.generation.v1 import generation_pb2 as pb
from kolm.generation.v1.generation_pb2_grpc import GenerationServiceStub
from services.client import AsyncRuntime, ClientTls
from services.client.channel import Connection
from services.client.errors import Unavailable
from services.runtime.metrics import metrics_endpoint
from tests.certificates import Certificates
from tests.integration.runtime.scripted import ScriptedServicer, mount
from tests.serving import Served, serving

PATIENCE = 240.0


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
    with closing(Connection(f"https://localhost:{_port(mutual)}", tls=client)) as connection:
        (answer,) = GenerationServiceStub(connection.channel).Generate(pb.GenerateRequest(request_id="peer")).choices
        assert answer.text == "billing.example"


@pytest.mark.parametrize("caller", ["nobody", "stranger", "plain"])
def test_without_a_certificate_of_the_authority_nobody_gets_in(
    mutual: Served, certificates: Certificates, tmp_path: Path, caller: str
) -> None:
    stranger = Certificates(tmp_path).client()
    tls = {
        "nobody": ClientTls(certificates.ca),
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
        assert "going on with the certificate of before" in caplog.text
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
        with socket.create_connection(("127.0.0.1", port or 0)):  # one that says nothing holds nobody up
            url = f"https://localhost:{port}/metrics"
            with urllib.request.urlopen(url, timeout=PATIENCE, context=client.context()) as page:
                assert b"seen_total 1.0" in page.read()
        nobody = ClientTls(certificates.ca).context()
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(url, timeout=PATIENCE, context=nobody)


def _port(served: Served) -> str:
    return served.address.rpartition(":")[2]


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
