"""Names of a server: pages whose site has pointed its name at this machine (DNS rebinding) reach none of ours."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter

from services.runtime.listening import ServedNames, host_name
from services.runtime.metrics import metrics_endpoint
from tests.serving import PATIENCE, started
from tests.unit.ledger.builders import KEYS
from tests.unit.ledger.witness.test_witness import LOG

OWN = (
    "127.0.0.1", "127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "localhost.:{port}", "kolm.localhost:{port}",
    "[::1]:{port}", "[::ffff:127.0.0.1]", "10.0.0.7:80", "chat.example", "Chat.Example.:443", "box", "box:{port}",
)  # fmt: skip
"""Hosts of a server that was given the names chat.example and box."""

FOREIGN = (
    "evil.example", "evil.example:{port}", "EVIL.example.", "127.0.0.1.evil.example", "chat.example.evil.example",
    "evil-chat.example", "notchat.example", "chat.example@evil.example", "localhost.evil.example", "notlocalhost",
    "mailbox", "a.box", "desk", "", ":{port}", ".", "..", ".localhost", "localhost..", "chat.example..",
    "evil。example", "chat。example", "127。0。0。1", "ｌocalhost", "127.1", "0x7f000001", "2130706433", "0177.0.0.1",
    "127.0.0.1.1", "[evil.example]", "[127.0.0.1]", "[::1", "::1", "[::1]x", "[::1%25lo]", "localhost:x", "xn--chat-.a",
    "localhost:80:80", "localhost:８０", "localhost/", "http://localhost", "localhost evil.example", "l\x00calhost",
    "*", "localhost,evil.example", "evil.example#.localhost", "evil_example.",
)  # fmt: skip

BY_THEMSELVES = (
    "X-Real-IP: 1", "X-Forwarded-For: 203.0.113.7", "Forwarded: for=203.0.113.7;host=localhost;proto=https",
    "Via: 1.1 proxy", "X-Forwarded-Host: localhost", "X-Forwarded-Proto: https", "X-Original-Host: localhost",
    "X-Forwarded-Server: localhost", "X-Host: localhost", "Authorization: Bearer kolm_" + "x" * 43,
    "Origin: http://127.0.0.1", "Referer: http://127.0.0.1/",
)  # fmt: skip
"""Headers that a page may set, or that a browser, a proxy or a caller adds."""

PAGES = {"explorer": "/receipts", "http": "/v1/models", "witness": "/vkey"}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Each HTTP server of ours, with nothing behind it, and an endpoint of metrics."""
    folder = tmp_path_factory.mktemp("named")
    KEYS["log"].publish(folder / "trusted")
    (folder / "logs").write_text(f"{LOG.to_text()}\n")
    flags = {
        "explorer": ("--ledger", "127.0.0.1:1", "--trusted-keys", str(folder / "trusted")),
        "http": ("--generation", "127.0.0.1:1"),
        "witness": ("--data-dir", str(folder / "w"), "--logs", str(folder / "logs")),
    }
    named = ("--listen", "127.0.0.1:0", "--public-name", "Chat.Example.", "--public-name", "box")
    registry = CollectorRegistry()
    Counter("seen", "Something to see.", registry=registry).inc()
    with ExitStack() as running:
        found = {
            service: running.enter_context(started(f"services.{service}", (*own, *named), folder / service))[1]
            for service, own in flags.items()
        }
        names = ServedNames(("chat.example", "box"))
        port = running.enter_context(metrics_endpoint(registry, "127.0.0.1", 0, names=names))
        yield found | {"metrics": f"127.0.0.1:{port}"}


def status(address: str, target: str, *headers: str, version: str = "1.1") -> int:
    """The answer to a request of exactly these lines; `{port}` is the server's."""
    host, _, port = address.rpartition(":")
    lines = [f"GET {target} HTTP/{version}", *headers, "Connection: close", "", ""]
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join(lines).replace("{port}", port).encode())
        with connection.makefile("rb") as answer:
            return int(answer.readline().split()[1])


SERVERS = (*PAGES, "metrics")


@pytest.mark.parametrize("service", SERVERS)
def test_a_server_answers_to_its_names_and_to_addresses(addresses: dict[str, str], service: str) -> None:
    address, page = addresses[service], PAGES.get(service, "/metrics")
    for host in OWN:
        assert status(address, page, f"Host: {host}") in (200, 503), host


@pytest.mark.parametrize("service", SERVERS)
def test_a_page_that_points_its_name_at_this_machine_reads_nothing_whatever_it_sends(
    addresses: dict[str, str], service: str
) -> None:
    address, page = addresses[service], PAGES.get(service, "/metrics")
    for path in (page, "/", "/health", "/metrics", "/static/explorer.css"):
        assert status(address, path, "Host: evil.example:{port}") == 421, path
    for header in BY_THEMSELVES:
        assert status(address, page, "Host: evil.example:{port}", header) == 421, header
        assert status(address, page, header, "Host: evil.example:{port}") == 421, header
    for host in FOREIGN:
        assert status(address, page, f"Host: {host}") in (400, 421), host


@pytest.mark.parametrize("service", SERVERS)
def test_no_request_has_two_hosts_or_none(addresses: dict[str, str], service: str) -> None:
    address, page = addresses[service], PAGES.get(service, "/metrics")
    own, foreign = "Host: 127.0.0.1:{port}", "Host: evil.example:{port}"
    for hosts in ((own, foreign), (foreign, own), (own, own), ()):
        assert status(address, page, *hosts) in (400, 421), hosts
    assert status(address, page, version="1.0") in (400, 421)
    assert status(address, page, foreign, version="1.0") == 421
    assert status(address, f"http://evil.example{page}", own) in (400, 421)
    assert status(address, f"http://127.0.0.1{page}", foreign) in (400, 421)


@given(st.text(max_size=30))
def test_any_text_is_a_host_or_none_and_no_text_is_one_by_chance(text: str) -> None:
    names = ServedNames(("chat.example",))
    if names.include(text):
        name = text.lower().partition(":")[0].removesuffix(".")
        assert text.isascii()
        assert name in ("chat.example", "localhost") or name.endswith(".localhost") or name.strip("[0123456789.") == ""


@pytest.mark.parametrize(
    "name", ["", ".", "https://chat.example", "chat.example:443", "*", "*.example", "büch.example"]
)
def test_a_public_name_is_a_name_of_dns(name: str) -> None:
    with pytest.raises(ValueError, match="host name"):
        host_name(name)
