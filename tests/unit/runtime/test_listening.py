"""A port that somebody has is known before anything is loaded."""

from __future__ import annotations

import socket

import pytest

from services.runtime.listening import CannotListen, check_free, is_loopback


def test_a_port_that_is_free_stays_free_and_one_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"127.0.0.1:{port}: another program has the port"):
            check_free(f"127.0.0.1:{port}")
    check_free(f"127.0.0.1:{port}")
    check_free(f"127.0.0.1:{port}")
    check_free("127.0.0.1:0")


@pytest.mark.parametrize("address", ["192.0.2.1:50051", "no.such.host.invalid:50051"])
def test_an_address_of_another_machine_is_said_to_be(address: str) -> None:
    with pytest.raises(CannotListen, match="not one of this machine"):
        check_free(address)


@pytest.mark.parametrize(
    ("host", "stays"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("192.168.1.2", False),
        ("localhost.example", False),
    ],
)
def test_only_loopback_addresses_stay_on_this_machine(host: str, stays: bool) -> None:
    assert is_loopback(host) is stays
