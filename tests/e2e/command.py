"""The `kolm` command as a person runs it, against services that are processes: its output, its exit code."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from services.cli.main import app
from services.cli.up.local_services import OWNER, Addresses, LocalServices, bring_up, token_file
from services.cli.up.supervisor import Plan, Supervisor
from tests.cli import FREE
from tests.forked import Forked
from tests.serving import PATIENCE

KOLM = (sys.executable, "-m", "services.cli")
_ASKED = ("generation", "ledger", "auditor", "registry")  # commands have a variable for each
_PAUSE = 0.05  # seconds between two questions, as the asked process needs the CPU


def own_environment() -> dict[str, str]:
    """The environment of a service: this process's, whose folders are those of its worker."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


class Kolm:
    """Runs commands against the services of one machine, in this process: one of their own imports for a second."""

    def __init__(self, addresses: Addresses, data_dir: Path, *, show_token: bool = False) -> None:
        """`show_token`: to services on other machines, to which the command shows a token only with this."""
        self.addresses = addresses
        self.token_file = token_file(data_dir, OWNER)
        given = {name: address for name, address in asdict(addresses).items() if address and name in _ASKED}
        named = {f"KOLM_{name.upper()}": address for name, address in given.items()}
        environment = {**named, "KOLM_DATA_DIR": str(data_dir), "COLUMNS": "100", "TERM": "dumb", "KOLM_TOKEN": None}
        if show_token:
            environment["KOLM_TOKEN_FILE"] = str(self.token_file)
        self._runner = CliRunner(env=environment)

    def __call__(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """`given` comes by standard input."""
        result = self._runner.invoke(app, list(arguments), input=given, catch_exceptions=False)
        return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)

    @property
    def token(self) -> str:
        """The token of the services' owner, for calls past the command line."""
        return self.token_file.read_text().strip()

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The output of a command with --json; it must exit with `code`."""
        done = self(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def kinds(self) -> dict[str, int]:
        """How many entries of each kind are in the log."""
        counted: dict[str, int] = self.json("ledger", "verify")["kinds"]
        return counted


def local_services(data_dir: Path, model: Path, **changes: Any) -> LocalServices:
    """Services on free ports, whose products take one thread; nothing is audited unless `changes` set a rate."""
    environment = {"OMP_NUM_THREADS": "1", **changes.pop("environment", {})}
    free = dict.fromkeys(("generation_port", "ledger_port", "auditor_port", "registry_port"), 0)
    return LocalServices(data_dir, model, **{**free, "audit_rate": 0.0, "environment": environment, **changes})


def say(service: str, line: str) -> None:
    """Past `sys.stdout`, which is a command's own while it runs."""
    print(service, line, file=sys.__stdout__, flush=True)


class ForkingSupervisor(Supervisor):
    """A supervisor whose services are forks."""

    def _process(self, plan: Plan) -> Forked:  # type: ignore[override]
        return Forked(plan.module, *plan.flags, environment={**os.environ, **plan.environment}, together=True)


@contextmanager
def running(services: LocalServices) -> Iterator[Kolm]:
    """All of them, answering; stopped at the end."""
    supervisor = ForkingSupervisor(say)
    try:
        yield Kolm(bring_up(services, supervisor), services.data_dir)
    finally:
        supervisor.stop(10.0)


@contextmanager
def up(data_dir: Path, model: Path, *flags: str) -> Iterator[tuple[Forked, Kolm]]:
    """`kolm up` on free ports, with its services answering. Processes that still run at the end are killed."""
    log = data_dir.parent / "up.log"
    command = [str(log), f"--data-dir={data_dir}", f"--model={model}", *FREE, "--json", *flags]
    with Forked("tests.e2e.forking_up", *command, environment=own_environment()) as process:
        line = process.stdout.readline()
        assert line, log.read_text()
        yield process, Kolm(Addresses(**json.loads(line)), data_dir)


def children(process: Forked | subprocess.Popen[str]) -> list[int]:
    """The ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_running(process_id: int) -> bool:
    """Whether a process exists and has not ended; a zombie has ended."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone before the file was opened, or before it was read
        return False
    return state != "Z"


def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Ask again until the answer is yes."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(_PAUSE)
