"""The `kolm` command as a person runs it: a process, its output, its exit code."""

from __future__ import annotations

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

from services.cli.jobs.running.local_services import Addresses

PATIENCE = 90.0
"""Seconds that anything may take on a busy machine; only a test that fails gets there."""

KOLM = (sys.executable, "-m", "services.cli")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


class Kolm:
    """Runs commands against the services of one machine."""

    def __init__(self, addresses: Addresses, data_dir: Path) -> None:
        self.addresses = addresses
        named = {f"KOLM_{name.upper()}": address for name, address in asdict(addresses).items() if address}
        self._environment = {**ENVIRONMENT, **named, "KOLM_DATA_DIR": str(data_dir)}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*KOLM, *arguments], env=self._environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def json(self, *arguments: str, code: int = 0) -> Any:
        """What a command prints with --json; it must exit with `code`."""
        done = self(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)


@contextmanager
def up(data_dir: Path, model: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], Kolm]]:
    """`kolm up` on free ports, with its services answering. Whatever is still running at the end is killed."""
    ports = ("--generation-port=0", "--ledger-port=0", "--auditor-port=0")
    command = [*KOLM, "up", f"--data-dir={data_dir}", f"--model={model}", *ports, "--json", *flags]
    log = data_dir.parent / "up.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield process, Kolm(Addresses(**json.loads(line)), data_dir)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[int]:
    """The ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def is_running(process_id: int) -> bool:
    """Whether a process is there and has not ended; one that only waits to be collected has."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone before the file was opened, or before it was read
        return False
    return state != "Z"


def until(condition: Callable[[], object]) -> None:
    """Ask again until the answer is yes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
