"""`python -m benchmarks.start [FLAGS OF kolm up]`: the times of `kolm`'s calls and of `kolm up`.

Calls: CPU seconds of the whole process, interpreter included, before it asks a service; the least of several runs.
Calls without --help fail: no server listens, or the named object does not exist. `tests/unit/cli/test_help.py` limits
their imports.

Starts: seconds until `kolm up` reports that it answers, and CPU seconds of all its processes, their stop included. The
first start finds no compiled kernels, digests or probe results, only Python's `.pyc` files; later starts find all.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measurement import Measurement, Subject
from services.generation.target.model_path import model_path

_RUNS = 10
_CLOSED = "127.0.0.1:1"
_CALLS = (
    "--help",
    "generate --help",
    "receipts list --help",
    "verify --help",
    f"generate x --max-tokens 8 --generation {_CLOSED}",
    f"receipts list --ledger {_CLOSED}",
    f"status --check --generation {_CLOSED} --ledger {_CLOSED} --auditor {_CLOSED} --registry {_CLOSED}",
    "verify nothing",
    "heads train nothing --prompts nothing --out nothing",
    "up --model nothing",
)

_SERVICES = ("generation", "ledger", "auditor", "registry", "explorer", "http")
_LATER = 3


def measure_calls() -> None:
    seconds = {call: cpu_seconds(call.split()) for call in _CALLS}
    Measurement.now("calls", seconds, Subject()).write()
    print(json.dumps(seconds, indent=1))


def cpu_seconds(words: list[str]) -> float:
    """CPU seconds of a call, the least of several runs, because other programs on the machine slow some of them."""
    return min(_once(words) for _ in range(_RUNS))


def _once(words: list[str]) -> float:
    command = [sys.executable, "-m", "services.cli", *words]
    before = _cpu()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, check=False)
    return round(_cpu() - before, 3)


def main() -> None:
    measure_calls()
    with tempfile.TemporaryDirectory() as folder:
        first, *later = [started(Path(folder), sys.argv[1:]) for _ in range(1 + _LATER)]
    found = {"first": first, "later": later, "load": os.getloadavg()}
    Measurement.now("start", found, Subject.of(model_path("smollm2"))).write()
    print(json.dumps(found, indent=1))


def started(folder: Path, flags: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one start and stop, with data and caches in `folder`."""
    ports = [f"--{name}-port={port}" for name, port in zip(_SERVICES, free_ports(len(_SERVICES)), strict=True)]
    caches = {"KOLM_KERNEL_CACHE": str(folder / "kernels"), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "services.cli", "up", f"--data-dir={folder / 'data'}", *ports, *flags]
    before = _cpu()
    with subprocess.Popen(command, env={**os.environ, **caches}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [""]
        for line in process.stderr:
            lines.append(line)
            if ready := re.search(r"answers after ([\d.]+) s", line):
                break
        else:
            raise SystemExit(f"kolm up ended before it answered: {lines[-1]}")
        process.send_signal(signal.SIGINT)
        process.communicate()
    return float(ready[1]), round(_cpu() - before, 2)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


if __name__ == "__main__":
    main()
