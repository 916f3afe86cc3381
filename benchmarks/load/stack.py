"""A ledger and a generation server as processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import resident
from services.cli.up.local_services import OWNER, LocalServices, token_file
from services.cli.up.supervisor import Plan

_START_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Stack:
    """Where both listen, and what a caller shows them: the owner's token acts for every tenant."""

    generation: str
    ledger: str
    token: str
    _processes: dict[str, subprocess.Popen[bytes]]

    def resident_mb(self) -> dict[str, float]:
        """Resident memory of each process (Linux)."""
        return {name: round(resident(process.pid) / 2**20, 1) for name, process in self._processes.items()}


@contextmanager
def running(folder: Path, model: str, *flags: str) -> Iterator[Stack]:
    """Both, answering; stopped at the end. `flags` are the generation server's."""
    services = LocalServices(
        folder / "data", Path(model), generation_port=0, ledger_port=0, generation_flags=flags,
        shared_flags=("--log-level", "error"),
    )  # fmt: skip
    services.trust_own_keys()
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        ledger = _start(processes, services.ledger())
        generation = _start(processes, services.generation(ledger))
        token = token_file(services.data_dir, OWNER).read_text().strip()
        yield Stack(generation, ledger, token, processes)
    finally:
        for process in reversed(processes.values()):
            process.terminate()
            process.wait(timeout=60)


def _start(processes: dict[str, subprocess.Popen[bytes]], plan: Plan) -> str:
    command = [sys.executable, "-m", plan.module, *plan.flags]
    processes[plan.name] = process = subprocess.Popen(command, env={**os.environ, **plan.environment})
    deadline = time.monotonic() + _START_SECONDS
    while not plan.ready_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the {plan.name} service did not start")
        time.sleep(0.05)
    return plan.ready_file.read_text().strip()
