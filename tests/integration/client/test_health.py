"""`python -m services.client.health`, as container health checks call it."""

from __future__ import annotations

import socket

import pytest

from services.client.health import main
from tests.integration.runtime.scripted import SERVICE, ScriptedServicer, mount
from tests.serving import serving


def test_a_serving_server_is_0_a_draining_one_5_and_an_unknown_service_5(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(mount(ScriptedServicer())) as served:
        assert main([served.address]) == 0
        assert main([served.address, SERVICE]) == 0
        assert main([served.address, "kolm.no.such.Service"]) == 5
        served.on_loop(served.server.drain)
        assert main([served.address]) == 5
    assert f"{served.address} does not serve" in capsys.readouterr().err


def test_nobody_there_is_5_and_no_address_is_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert main([f"127.0.0.1:{taken.getsockname()[1]}"]) == 5
    assert main([]) == 2
