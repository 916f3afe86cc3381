"""`kolm up`: which services are started, in which order, with flags that they know."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from services.cli.jobs.running.local_services import LocalServices, bring_up
from services.cli.jobs.running.supervisor import Plan, Supervisor
from services.explorer.settings import ExplorerSettings


class Starts:
    """Answers as a supervisor whose services are all well."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def start(self, plan: Plan, seconds: float) -> str:
        self.plans.append(plan)
        return f"127.0.0.1:{7000 + len(self.plans)}"


def started(services: LocalServices) -> tuple[list[Plan], Any]:
    supervisor = Starts()
    addresses = bring_up(services, cast(Supervisor, supervisor))
    return supervisor.plans, addresses


def test_the_auditor_s_page_is_served_last_and_over_this_ledger(tmp_path: Path) -> None:
    plans, addresses = started(LocalServices(tmp_path, Path("model"), explorer_port=0))
    assert [plan.name for plan in plans] == ["ledger", "registry", "generation", "auditor", "explorer"]
    assert addresses.explorer == "127.0.0.1:7005"
    page = plans[-1]
    given = dict(zip(page.flags[::2], page.flags[1::2], strict=True))
    assert (given["--listen"], given["--ledger"]) == ("127.0.0.1:0", addresses.ledger)
    names = {flag.removeprefix("--").replace("-", "_") for flag in given}
    assert names <= set(ExplorerSettings.model_fields)


def test_without_a_port_there_is_no_page(tmp_path: Path) -> None:
    plans, addresses = started(LocalServices(tmp_path, Path("model")))
    assert (len(plans), addresses.explorer) == (4, None)
