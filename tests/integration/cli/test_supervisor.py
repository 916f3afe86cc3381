"""Child processes: started in order, watched, stopped whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.up.supervisor import NotReady, Plan, ServiceDied, StopRequested, Supervisor
from tests.e2e.command import children, is_running, until

PATIENCE = 240.0


class Lines:
    """The lines of the services."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.said.append((name, line))


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def supervisor(lines: Lines) -> Iterator[Supervisor]:
    made = Supervisor(lines)
    yield made
    made.stop(0.0)


def plan(directory: Path, name: str, *flags: str) -> Plan:
    ready = directory / f"{name}.address"
    return Plan(name, "tests.integration.cli.stub_service", (f"--ready-file={ready}", *flags), "127.0.0.1:0", ready)


def test_a_service_is_started_once_it_says_where(tmp_path: Path, supervisor: Supervisor, lines: Lines) -> None:
    assert supervisor.start(plan(tmp_path, "one"), PATIENCE) == "127.0.0.1:1"
    supervisor.check()
    supervisor.stop(PATIENCE)
    assert lines.said == [("one", "starting up")]


def test_a_service_that_dies_ends_the_waiting_with_its_last_words(tmp_path: Path, supervisor: Supervisor) -> None:
    with pytest.raises(ServiceDied, match="the one service exited with code 3") as died:
        supervisor.start(plan(tmp_path, "one", "--exit=3"), PATIENCE)
    assert died.value.last_lines[-1] == "cannot go on: the disk is full"


def test_a_service_that_never_gets_ready_is_given_up(tmp_path: Path, supervisor: Supervisor) -> None:
    with pytest.raises(NotReady, match="did not get ready within"):
        supervisor.start(plan(tmp_path, "one", "--never-ready=1"), 0.2)


def test_an_address_left_over_from_before_is_not_believed(tmp_path: Path, supervisor: Supervisor) -> None:
    (tmp_path / "one.address").write_text("127.0.0.1:9\n")
    with pytest.raises(NotReady):
        supervisor.start(plan(tmp_path, "one", "--never-ready=1"), 0.2)


def test_a_service_that_ignores_sigterm_is_killed(tmp_path: Path, supervisor: Supervisor, lines: Lines) -> None:
    supervisor.start(plan(tmp_path, "one", "--stubborn=1"), PATIENCE)
    supervisor.stop(0.1)
    assert ("one", "did not stop within 0.1 s, killed") in lines.said


def test_a_service_that_says_nothing_is_spoken_for(tmp_path: Path) -> None:
    said: list[tuple[str, str | None]] = []

    def enough(name: str, _: float, last: str | None) -> None:
        said.append((name, last))
        if said[-2:] == [("one", "starting up")] * 2:
            raise InterruptedError

    supervisor = Supervisor(Lines(), enough, quiet_seconds=0.1)
    try:
        with pytest.raises(InterruptedError):
            supervisor.start(plan(tmp_path, "one", "--never-ready=1"), PATIENCE)
    finally:
        supervisor.stop(0.0)


def test_services_start_beside_each_other(tmp_path: Path, supervisor: Supervisor) -> None:
    one, two = plan(tmp_path, "one"), plan(tmp_path, "two")
    supervisor.launch(one)
    supervisor.launch(two)
    assert [supervisor.address(each, PATIENCE) for each in (two, one)] == ["127.0.0.1:1"] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_waiting(tmp_path: Path, supervisor: Supervisor, number: signal.Signals) -> None:
    with supervisor.listening():
        supervisor.start(plan(tmp_path, "one"), PATIENCE)
        os.kill(os.getpid(), number)
        with pytest.raises(StopRequested, match=number.name):
            supervisor.wait()
    supervisor.stop(PATIENCE)


def test_services_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    supervising = f"""
import signal
from pathlib import Path
from tests.integration.cli.test_supervisor import PATIENCE, Lines, Supervisor, plan
supervisor = Supervisor(Lines())
supervisor.start(plan(Path({str(tmp_path)!r}), "one"), PATIENCE)
print(flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", supervising], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (service,) = children(process)
        process.kill()
    until(lambda: not is_running(service))
