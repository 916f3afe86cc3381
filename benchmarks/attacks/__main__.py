"""`python -m benchmarks.attacks`: memory of a ledger before, under and after each attack; JSON with --json FILE."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.attacks.attacks import ATTACKS
from benchmarks.machine import resident
from services.client import LedgerClient
from services.client.errors import KolmError
from services.runtime.access.credentials import Credential, new_token, token_digest, write_principals

HONEST = new_token()
"""Of a caller whom the attacker is not."""

_SECONDS = 6.0
_START_SECONDS = 1.5
_CALM_SECONDS = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="how long each attack goes on")
    parser.add_argument("--only", help="attacks whose name holds this")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("flags", nargs="*", help="flags of the ledger")
    arguments = parser.parse_args()
    figures = []
    for name in ATTACKS:
        if arguments.only is None or arguments.only in name:
            figures.append({"attack": name} | measured(name, arguments.seconds, arguments.flags))
            print(
                "{attack:45} {before:6.0f} {most:6.0f} {after:6.0f} MB  answers {answers}; {neighbour}".format(
                    **figures[-1]
                )
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def measured(name: str, seconds: float, flags: list[str]) -> dict[str, Any]:
    """Resident memory in MB before the attack, the most under it, and some seconds after it; and when honest callers
    were answered meanwhile, one with a token and one who shares the attacker's identity.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ledger(Path(folder), flags) as (process, address),
        closing(LedgerClient.connect(address, wait=30, timeout=20, token=HONEST)) as honest,
        closing(LedgerClient.connect(address, wait=30, timeout=20)) as neighbour,
        ThreadPoolExecutor() as threads,
    ):
        for caller in (honest, neighbour):
            caller.checkpoint()
        before = resident(process.pid) / 1e6
        with subprocess.Popen([sys.executable, "-m", "benchmarks.attacks.attacks", name, address]) as attacker:
            asking = [
                threads.submit(_answers, caller, process, seconds + _START_SECONDS) for caller in (honest, neighbour)
            ]
            answers, neighbours = (asked.result() for asked in asking)
            most = resident(process.pid, "VmHWM") / 1e6
            attacker.kill()
        time.sleep(_CALM_SECONDS)
        after = resident(process.pid) / 1e6
    return {"before": before, "most": most, "after": after, "answers": answers, "neighbour": neighbours}


def _answers(honest: LedgerClient, process: subprocess.Popen[bytes], seconds: float) -> str:
    """Asks all the time; the slowest answer, or what came in its place."""
    end, slowest = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        started = time.monotonic()
        try:
            honest.checkpoint()
        except KolmError as error:
            return type(error).__name__ if process.poll() is None else "none: it died"
        slowest = max(slowest, time.monotonic() - started)
        time.sleep(0.05)
    return f"within {slowest:.2f} s"


@contextmanager
def ledger(folder: Path, flags: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Whoever is on this machine may append and read: without a role an attacker's request would not even be read.
    So may HONEST, under an identity of its own.
    """
    local = Credential(name="here", tenant=None, roles=("append", "read"), anybody=True, created_at=datetime.now(UTC))
    honest = local.model_copy(update={"name": "honest", "anybody": False, "token_sha256": token_digest(HONEST)})
    write_principals(folder / "principals.json", [local, honest])
    command = [sys.executable, "-m", "services.ledger", "--data-dir", str(folder), "--listen", "127.0.0.1:0"]
    ready = folder / "address"
    command += ["--principals", str(folder / "principals.json"), "--ready-file", str(ready), *flags]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise RuntimeError((folder / "log").read_text())
                time.sleep(0.05)
            yield process, ready.read_text().strip()
        finally:
            process.kill()


if __name__ == "__main__":
    main()
