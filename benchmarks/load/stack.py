"""A ledger and a generation server as processes on this machine, with or without TLS."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from services.cli.jobs.initial_folder import CALLER, InitialFolder
from services.cli.jobs.running.local_services import LocalServices
from services.cli.jobs.running.own_principals import OWNER, token_file
from services.cli.jobs.running.supervisor import Plan
from services.client.tls import ClientTls

_START_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Stack:
    """Where both listen, and what a caller shows them: the owner's token acts for every tenant."""

    generation: str
    ledger: str
    token: str
    tls: ClientTls | None
    _processes: dict[str, subprocess.Popen[bytes]]

    def resident_mb(self) -> dict[str, float]:
        """Of each process (Linux)."""
        return {name: _resident(process.pid) for name, process in self._processes.items()}


@contextmanager
def running(folder: Path, model: str, *flags: str, tls: bool = False) -> Iterator[Stack]:
    """Both, answering; stopped at the end. `flags` are the generation server's."""
    keys = _certificates(folder / "tls") if tls else None
    secure = () if keys is None else _tls_flags(keys, "generation")
    services = LocalServices(
        folder / "data", Path(model), generation_port=0, ledger_port=0, generation_flags=(*flags, *secure),
        shared_flags=("--log-level", "error"),
    )  # fmt: skip
    services.trust_own_keys()
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        ledger = _start(processes, services.ledger(), () if keys is None else _tls_flags(keys, "ledger"), keys)
        generation = _start(processes, services.generation(ledger), (), keys)
        token = token_file(services.data_dir, OWNER).read_text().strip()
        yield Stack(generation, ledger, token, None if keys is None else _caller(keys), processes)
    finally:
        for process in reversed(processes.values()):
            process.terminate()
            process.wait(timeout=60)


def _start(
    processes: dict[str, subprocess.Popen[bytes]], plan: Plan, flags: tuple[str, ...], keys: InitialFolder | None
) -> str:
    command = [sys.executable, "-m", plan.module, *plan.flags, *flags]
    processes[plan.name] = process = subprocess.Popen(command, env={**os.environ, **plan.environment})
    deadline = time.monotonic() + _START_SECONDS
    while not plan.ready_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the {plan.name} service did not start")
        time.sleep(0.05)
    address = plan.ready_file.read_text().strip()
    return address if keys is None else f"https://{address}"


def _certificates(folder: Path) -> InitialFolder:
    """Of mutual TLS: an authority, and a certificate for each service and for callers."""
    keys = InitialFolder(folder)
    keys.create((), datetime.now(UTC), 1)
    return keys


def _tls_flags(keys: InitialFolder, name: str) -> tuple[str, ...]:
    authority = str(keys.authority)
    own = ("--tls-cert", str(keys.certificate(name)), "--tls-key", str(keys.key(name)))
    return (*own, "--tls-client-ca", authority, "--tls-ca", authority)


def _caller(keys: InitialFolder) -> ClientTls:
    return ClientTls(keys.authority, keys.certificate(CALLER), keys.key(CALLER))


def _resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
