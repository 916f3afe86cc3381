"""`python -m benchmarks.calls`: CPU seconds that `kolm` takes before it asks a service, by command.

User and system time of the whole process, interpreter included; the least of several runs. The calls are refused:
nobody listens, or what they name is not there. `tests/unit/cli/test_imports.py` holds what they import.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.table import Table

from benchmarks.machine import RESULTS, machine

_RUNS = 10
_NOBODY = "127.0.0.1:1"
_CALLS = (
    "--help",
    "generate --help",
    "receipts list --help",
    "verify --help",
    f"generate x --max-tokens 8 --generation {_NOBODY}",
    f"receipts list --ledger {_NOBODY}",
    f"health --generation {_NOBODY} --ledger {_NOBODY} --auditor {_NOBODY} --registry {_NOBODY}",
    "verify nothing",
    "heads train nothing --prompts nothing --out nothing",
    "up --model nothing",
)


def main() -> None:
    seconds = {call: cpu_seconds(call.split()) for call in _CALLS}
    (RESULTS / "calls.json").write_text(json.dumps({"machine": machine(), "cpu_seconds": seconds}, indent=2) + "\n")
    shown = Table("kolm", "CPU, s")
    for call, value in seconds.items():
        shown.add_row(call, f"{value:.3f}")
    Console().print(shown)


def cpu_seconds(words: list[str]) -> float:
    """The least of several runs: what other programs on the machine did to one of them is no cost of the command."""
    return min(_once(words) for _ in range(_RUNS))


def _once(words: list[str]) -> float:
    command = [sys.executable, "-m", "services.cli", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)


if __name__ == "__main__":
    main()
