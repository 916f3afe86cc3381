"""`kolm up`: which services are started, in which order, with flags that they know."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from services.cli.house import House, bring_up
from services.cli.main import app
from services.cli.supervisor import Plan, Supervisor
from services.cli.up import _page_port
from services.explorer.settings import ExplorerSettings
from services.generation.settings import GenerationSettings


class Starts:
    """Answers as a supervisor whose services are all well."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def start(self, plan: Plan, seconds: float) -> str:
        self.plans.append(plan)
        return f"127.0.0.1:{7000 + len(self.plans)}"


def started(house: House) -> tuple[list[Plan], Any]:
    supervisor = Starts()
    addresses = bring_up(house, cast(Supervisor, supervisor))
    return supervisor.plans, addresses


def test_the_auditor_s_page_is_served_last_and_over_this_ledger(tmp_path: Path) -> None:
    plans, addresses = started(House(tmp_path, Path("model"), explorer_port=0))
    assert [plan.name for plan in plans] == ["ledger", "registry", "generation", "auditor", "explorer"]
    assert addresses.explorer == "127.0.0.1:7005"
    page = plans[-1]
    given = dict(zip(page.flags[::2], page.flags[1::2], strict=True))
    assert (given["--listen"], given["--ledger"]) == ("127.0.0.1:0", addresses.ledger)
    names = {flag.removeprefix("--").replace("-", "_") for flag in given}
    assert names <= set(ExplorerSettings.model_fields)


def test_what_up_is_told_of_context_and_cache_reaches_the_generation_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    houses: list[House] = []
    monkeypatch.setattr("services.cli.up._run", lambda house, as_json: houses.append(house))
    (tmp_path / "config.json").touch()
    sizes = ["--context-length", "1024", "--cache-bytes", "2GiB"]
    assert CliRunner().invoke(app, ["up", "--model", str(tmp_path), *sizes]).exit_code == 0
    assert houses[0].generation_flags == tuple(sizes)
    settings = GenerationSettings.load(houses[0].generation("127.0.0.1:1").flags, environment={})
    assert (settings.context_length, settings.cache_bytes) == (1024, 2 << 30)


def test_without_a_port_there_is_no_page(tmp_path: Path) -> None:
    plans, addresses = started(House(tmp_path, Path("model")))
    assert (len(plans), addresses.explorer) == (4, None)


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
