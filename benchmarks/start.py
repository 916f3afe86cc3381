"""`python -m benchmarks.start [MODEL]`: the times of `kolm`'s calls and of `kolm up`, and the memory that it takes.

Calls: CPU seconds of the whole process, interpreter included, before it asks a service; the least of several runs.
Calls without --help fail: no server listens, or the named object does not exist. `tests/unit/cli/test_help.py` limits
their imports.

Starts: seconds until `kolm up` reports that it answers, and CPU seconds of all its processes, their stop included. The
first start finds no compiled kernels, digests or probe results, only Python's `.pyc` files; later starts find all.

Memory: bytes of server and auditor together, each shared page in parts (PSS of proc_pid_smaps(5)), some seconds after
audited requests, and the bytes of the model's weights files. Linux only.
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
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measurement import Measurement, Subject
from services.generation.target.files.safetensors import weight_files
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
_REQUESTS, _TOKENS, _AUDIT_SECONDS = 4, 60, 300.0
_IDLE_SECONDS = 15.0  # for the timing of passes, after which unused memory is returned


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
    model = model_path(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    measure_calls()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, *later = [started(folder, model) for _ in range(1 + _LATER)]
        found = {"first": first, "later": later, "load": os.getloadavg(), "memory": memory(folder, model)}
    case = "" if model == model_path("smollm2") else model.stem
    Measurement.now("start", found, Subject.of(model), case=case).write()
    print(json.dumps(found, indent=1))


def started(folder: Path, model: Path) -> tuple[float, float]:
    """Wall and CPU seconds of one start and stop, with data and caches in `folder`."""
    before = _cpu()
    with running(folder, model) as up:
        pass
    return up.seconds, round(_cpu() - before, 2)


def memory(folder: Path, model: Path) -> dict[str, int]:
    """Bytes of server and auditor together after audited requests, and bytes of the weights files."""
    with running(folder, model) as up:
        for number in range(_REQUESTS):
            up.kolm(
                "generate", f"Write a Python function number {number} that reverses a list.", f"--max-tokens={_TOKENS}"
            )
        deadline = time.monotonic() + _AUDIT_SECONDS
        while len(json.loads(up.kolm("receipts", "list", "--outcome=EXACT", "--json"))) < _REQUESTS:
            if time.monotonic() > deadline:
                raise SystemExit(f"not all of {_REQUESTS} receipts were EXACT within {_AUDIT_SECONDS:g} s")
            time.sleep(1.0)
        time.sleep(_IDLE_SECONDS)
        used = sum(map(proportional_bytes, up.processes("generation", "auditor")))
    files = [model] if model.is_file() else weight_files(model)
    return {"server and auditor": used, "weights": sum(path.stat().st_size for path in files)}


def proportional_bytes(process_id: int) -> int:
    """The memory of a process, of which a shared page counts in parts."""
    rollup = Path(f"/proc/{process_id}/smaps_rollup").read_text(encoding="ascii")
    return 1024 * int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[1])  # type: ignore[index]


@dataclass(frozen=True, slots=True)
class Up:
    """A running `kolm up`, which answered after `seconds`."""

    seconds: float
    process_id: int
    environment: Mapping[str, str]

    def kolm(self, *words: str) -> str:
        """The output of a command. Raises CalledProcessError."""
        command = [sys.executable, "-m", "services.cli", *words]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def processes(self, *names: str) -> list[int]:
        """The ids of the named services' processes."""
        ids = Path(f"/proc/{self.process_id}/task/{self.process_id}/children").read_text().split()
        commands = {int(each): Path(f"/proc/{each}/cmdline").read_text() for each in ids}
        return [
            each for each, command in commands.items() if command.split("\0")[2] in {f"services.{n}" for n in names}
        ]


@contextmanager
def running(folder: Path, model: Path) -> Iterator[Up]:
    """`kolm up` from its first answer on, with data and caches in `folder`."""
    ports = dict(zip(_SERVICES, free_ports(len(_SERVICES)), strict=True))
    caches = {"KOLM_KERNEL_CACHE": str(folder / "kernels"), "XDG_CACHE_HOME": str(folder / "cache")}
    environment = {**os.environ, **caches, "KOLM_DATA_DIR": str(folder / "data")}
    addresses = {f"KOLM_{name.upper()}": f"127.0.0.1:{ports[name]}" for name in ("generation", "ledger")}
    command = [sys.executable, "-m", "services.cli", "up", f"--model={model}"]
    command += [f"--{name}-port={port}" for name, port in ports.items()]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [""]
        for line in process.stderr:
            lines.append(line)
            if ready := re.search(r"answers after ([\d.]+) s", line):
                break
        else:
            raise SystemExit(f"kolm up ended before it answered: {lines[-1]}")
        rest = threading.Thread(target=process.stderr.read, daemon=True)
        rest.start()
        try:
            yield Up(float(ready[1]), process.pid, {**environment, **addresses})
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
            rest.join()


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
