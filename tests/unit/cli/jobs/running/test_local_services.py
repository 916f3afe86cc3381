"""`kolm up`: which services are started, in which order, with flags that they know."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from services.cli.jobs.running.local_services import LocalServices, bring_up
from services.cli.jobs.running.supervisor import Plan, Supervisor
from services.explorer.settings import ExplorerSettings
from services.http.settings import HttpSettings


class Starts:
    """Answers as a supervisor whose services are all well."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.waited: list[str] = []
        self.launched_at_first_wait = 0

    def start(self, plan: Plan, seconds: float) -> str:
        self.launch(plan)
        return self.address(plan, seconds)

    def launch(self, plan: Plan) -> None:
        self.plans.append(plan)

    def address(self, plan: Plan, seconds: float) -> str:
        self.launched_at_first_wait = self.launched_at_first_wait or len(self.plans)
        self.waited.append(plan.name)
        return f"127.0.0.1:{7001 + self.plans.index(plan)}"


def started(services: LocalServices) -> tuple[Starts, Any]:
    supervisor = Starts()
    addresses = bring_up(services, cast(Supervisor, supervisor))
    return supervisor, addresses


def test_services_with_ports_of_their_own_are_all_started_before_one_is_waited_for(tmp_path: Path) -> None:
    made, _ = started(LocalServices(tmp_path, Path("model"), explorer_port=50056, http_port=50057))
    assert [plan.name for plan in made.plans] == ["ledger", "registry", "generation", "auditor", "explorer", "http"]
    assert made.waited == ["generation", "ledger", "auditor", "registry", "explorer", "http"]
    assert made.launched_at_first_wait == 6
    given = dict(zip(made.plans[-1].flags[::2], made.plans[-1].flags[1::2], strict=True))
    assert given["--generation"] == "127.0.0.1:50051"


def test_whoever_is_told_of_a_free_port_is_started_once_that_is_known(tmp_path: Path) -> None:
    free = {f"{name}_port": 0 for name in ("ledger", "registry", "generation", "explorer", "http")}
    made, addresses = started(LocalServices(tmp_path, Path("model"), **free))
    assert made.waited[:2] == ["ledger", "ledger"]
    assert addresses.ledger in made.plans[1].flags
    assert addresses.generation in made.plans[-1].flags


def test_the_auditor_s_page_is_over_this_ledger(tmp_path: Path) -> None:
    made, addresses = started(LocalServices(tmp_path, Path("model"), explorer_port=0))
    assert addresses.explorer == "127.0.0.1:7005"
    page = made.plans[-1]
    given = dict(zip(page.flags[::2], page.flags[1::2], strict=True))
    assert (given["--listen"], given["--ledger"]) == ("127.0.0.1:0", "127.0.0.1:50052")
    names = {flag.removeprefix("--").replace("-", "_") for flag in given}
    assert names <= set(ExplorerSettings.model_fields)


def test_openai_s_api_is_over_this_generation_server_and_comes_up_beside_the_auditor(tmp_path: Path) -> None:
    made, addresses = started(LocalServices(tmp_path, Path("model"), http_port=0))
    assert addresses.http == "127.0.0.1:7005"
    front = made.plans[-1]
    given = dict(zip(front.flags[::2], front.flags[1::2], strict=True))
    assert (given["--listen"], given["--generation"]) == ("127.0.0.1:0", "127.0.0.1:50051")
    names = {flag.removeprefix("--").replace("-", "_") for flag in given}
    assert names <= set(HttpSettings.model_fields)


def test_without_a_port_there_is_no_page_and_no_api(tmp_path: Path) -> None:
    made, addresses = started(LocalServices(tmp_path, Path("model")))
    assert (len(made.plans), addresses.explorer, addresses.http) == (4, None, None)
