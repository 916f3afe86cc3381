"""`kolm up`: its flags reach the services, and the page takes no port from others."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.commands.up import _page_port
from services.cli.jobs.running.local_services import LocalServices
from services.cli.main import app
from services.generation.settings import GenerationSettings


def test_what_up_is_told_of_context_and_cache_reaches_the_generation_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[LocalServices] = []
    monkeypatch.setattr("services.cli.commands.up._run", lambda services, adapters, as_json: found.append(services))
    (tmp_path / "config.json").touch()
    sizes = ["--context-length", "1024", "--cache-bytes", "2GiB"]
    assert CliRunner().invoke(app, ["up", "--model", str(tmp_path), *sizes]).exit_code == 0
    assert found[0].generation_flags == tuple(sizes)
    settings = GenerationSettings.load(found[0].generation("127.0.0.1:1").flags, environment={})
    assert (settings.context_length, settings.cache_bytes) == (1024, 2 << 30)


def test_the_page_makes_way_for_whoever_has_its_port() -> None:
    assert _page_port("127.0.0.1", 4321) == 4321
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 50056))
            other.listen()
        except OSError:
            pass  # somebody has it already
        assert _page_port("127.0.0.1", None) == 0
