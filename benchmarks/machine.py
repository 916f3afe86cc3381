"""The memory bandwidth of this machine, and services that a benchmark starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

RESULTS = Path(__file__).parent / "results"

_START_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Service:
    """A running service."""

    address: str
    process: int

    def processor_seconds(self) -> float:
        """CPU seconds so far, in user and system mode, of the service and its child processes."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = path.read_text().rsplit(")", 1)[1].split()
                if str(self.process) in (path.parent.name, fields[1]):
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def read_bandwidth() -> float:
    """Bytes a second at which all CPUs together read memory: the fastest of twenty reads."""
    import numpy as np
    import torch

    from services.generation.target.program.buffers import on_huge_pages

    memory = torch.from_numpy(on_huge_pages(512 << 20).view(np.float32))
    memory.fill_(1.0)

    def once() -> float:
        start = time.perf_counter()
        memory.sum()
        return memory.nbytes / (time.perf_counter() - start)

    return max(islice(iter(once, None), 20))


@contextmanager
def serving(name: str, command: Sequence[str], ready: Path, environment: Mapping[str, str]) -> Iterator[Service]:
    """Run a service in a process of its own until the block ends; it writes its address into `ready`."""
    ready.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-m", *command], env={**os.environ, **environment})
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {name} service did not start")
            time.sleep(0.05)
        yield Service(ready.read_text().strip(), process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)
