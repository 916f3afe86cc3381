"""`python -m benchmarks.start [FLAGS OF kolm up]`: how long `kolm up` takes to be ready, at first and later.

Seconds of the wall from the command to "ready", and CPU seconds of all its processes, their stop included. The first
start finds no compiled code, no digest and no probe, but Python's own `.pyc` files; each later one finds all of them.
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

from rich.console import Console
from rich.table import Table

from benchmarks.machine import RESULTS, machine

_SERVICES = ("generation", "ledger", "auditor", "registry", "explorer", "http")
_LATER = 3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, *later = [started(Path(folder), sys.argv[1:]) for _ in range(1 + _LATER)]
    found = {"first": first, "later": later}
    (RESULTS / "start.json").write_text(json.dumps({"machine": machine(), "load": os.getloadavg(), **found}, indent=2))
    shown = Table("kolm up", "ready after, s", "CPU, s")
    for name, (wall, cpu) in (("first", first), *(("later", each) for each in later)):
        shown.add_row(name, f"{wall:.1f}", f"{cpu:.1f}")
    Console().print(shown)


def started(folder: Path, flags: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one start and stop, with data and caches in `folder`."""
    ports = [f"--{name}-port={port}" for name, port in zip(_SERVICES, _free_ports(len(_SERVICES)), strict=True)]
    caches = {"KOLM_KERNEL_CACHE": str(folder / "kernels"), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-m", "services.cli", "up", f"--data-dir={folder / 'data'}", *ports, *flags]
    before = _cpu()
    with subprocess.Popen(command, env={**os.environ, **caches}, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ready = next(filter(None, (re.search(r"ready after ([\d.]+) s", line) for line in process.stderr)))
        process.send_signal(signal.SIGINT)
        process.communicate()
    return float(ready[1]), round(_cpu() - before, 2)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


if __name__ == "__main__":
    main()
