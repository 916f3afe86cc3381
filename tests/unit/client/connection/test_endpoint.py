"""Which targets get TLS, and when a secret would travel in the clear."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from services.client.channel import Endpoint, endpoint, shown_to
from services.client.errors import InvalidArgument
from services.client.identity import ClientTls
from tests.certificates import Certificates

SECRET = "kolm_swordfish"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ClientTls:
    return Certificates(tmp_path_factory.mktemp("tls")).client()


@pytest.mark.parametrize(
    ("target", "place", "encrypted"),
    [
        ("ledger.example:50052", "ledger.example:50052", True),
        ("dns:///ledger:50052", "dns:///ledger:50052", True),
        ("https://ledger.example:50052", "ledger.example:50052", True),
        ("https://ledger.example/", "ledger.example:443", True),
        ("https://[::1]:7", "[::1]:7", True),
        ("http://ledger.example:50052", "ledger.example:50052", False),
    ],
)
def test_a_plain_address_is_tls_where_an_authority_is_named_and_a_url_says_it_itself(
    tls: ClientTls, target: str, place: str, encrypted: bool
) -> None:
    found = endpoint(target, tls)
    assert (found.target, found.credentials is not None) == (place, encrypted)


def test_a_plain_address_is_plain_where_nothing_is_named() -> None:
    assert endpoint("127.0.0.1:1", ClientTls()) == Endpoint("127.0.0.1:1", None)
    assert endpoint("https://127.0.0.1:1", ClientTls()).credentials is not None


@pytest.mark.parametrize(
    "target",
    ["https://host:1/path", "http://host", "https://", "https://host:x", "https://a@host:1", "https://h:1?x=1"],
)
def test_other_urls_are_refused(target: str) -> None:
    with pytest.raises(InvalidArgument, match="target: expected host:port") as caught:
        endpoint(target, ClientTls())
    assert caught.value.fields == ("target",)


def test_files_of_no_use_are_named(tls: ClientTls, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    for wrong, said in (
        (ClientTls(tmp_path / "none"), "no file"),
        (ClientTls(tmp_path / "junk"), "cannot use"),
        (ClientTls(tls.ca, tls.cert), "got one of the two"),
        (ClientTls(tls.ca, tls.key, tls.cert), "cannot use"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            endpoint("127.0.0.1:1", wrong)


@pytest.mark.parametrize(
    ("target", "warned"),
    [
        ("127.0.0.1:1", False),
        ("localhost:1", False),
        ("[::1]:1", False),
        ("unix:/run/kolm", False),
        ("ipv4:127.0.0.1:1", False),
        ("10.0.0.7:1", True),
        ("dns:///ledger:1", True),
        ("dns://9.9.9.9/ledger:1", True),
        ("ledger", True),
    ],
)
def test_a_secret_in_the_clear_is_said_once_and_not_shown(
    caplog: pytest.LogCaptureFixture, target: str, warned: bool
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        shown_to(Endpoint(target, None), SECRET)
    assert [record.getMessage() for record in caplog.records] == [
        f"a secret goes to {target} without TLS: everybody on the way can read it"
    ] * warned
    shown_to(Endpoint("other.example:1", None), "")
    assert len(caplog.records) == warned
