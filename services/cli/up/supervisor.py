"""Several services as child processes: started one after another, watched together, stopped in reverse.

If one ends by itself, all end. Each child has a session of its own, so that Ctrl-C in a terminal reaches only this
process, which stops them in order.
"""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from services.cli.frame.process import stop_signals

Line = Callable[[str, str], None]
"""Takes the name of a service and a line that it wrote; called from threads."""

Quiet = Callable[[str, float, str | None], None]
"""Takes the name of a service without output for a while, the seconds since its start, and its last line."""

Settings = Mapping[str, object]
"""Settings of a service by name; None and False are not set."""

_LAST_LINES = 20
_POLL_SECONDS = 0.05
_QUIET_SECONDS = 4.0


_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class StopRequested(Exception):
    """SIGINT or SIGTERM arrived while services were starting or running."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class ServiceDied(Exception):
    """A service ended by itself; `last_lines` are its last lines of output."""

    def __init__(self, name: str, code: int, last_lines: Sequence[str]) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        super().__init__(f"the {name} service {how}")
        self.name = name
        self.last_lines = tuple(last_lines)

    @property
    def last_line(self) -> str | None:
        """The last line that is not blank."""
        return next((line for line in reversed(self.last_lines) if line.strip()), None)


class NotReady(Exception):
    """A service did not accept calls in time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to start one service: `python -m <module> <flags>`. It writes host:port into `ready_file` when it serves.

    `settings` by name, as `words` writes them. `listens_at` is the host:port that it is given; port 0 is a free one.
    `more` are words after the flags.
    """

    name: str
    module: str
    settings: Settings
    listens_at: str
    ready_file: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        return (*words(**self.settings), *self.more)


def words(**flags: object) -> tuple[str, ...]:
    """`--the-name VALUE` for each setting, once for each value of a list; the bare flag for True, nothing for None and
    False.
    """
    found: list[str] = []
    for name, given in flags.items():
        flag = f"--{name.replace('_', '-')}"
        for value in given if isinstance(given, list) else [given]:
            if value is True:
                found.append(flag)
            elif value is not None and value is not False:
                found += (flag, str(value))
    return tuple(found)


@dataclass(slots=True)
class _Child:
    plan: Plan
    process: subprocess.Popen[str]
    last_lines: deque[str]
    started: float
    watcher: threading.Thread | None = None


class Supervisor:
    """Use it inside `listening()`, from the main thread, and always call `stop`."""

    def __init__(self, on_line: Line, on_quiet: Quiet = lambda *_: None, quiet_seconds: float = _QUIET_SECONDS) -> None:
        """`on_quiet` is called while a service starts, after each `quiet_seconds` without output of any service."""
        self._on_line = on_line
        self._on_quiet = on_quiet
        self._quiet_seconds = quiet_seconds
        self._heard = time.monotonic()
        self._children: list[_Child] = []
        self._events: queue.SimpleQueue[int | _Child] = queue.SimpleQueue()
        self._stopping = False

    def listening(self) -> AbstractContextManager[None]:
        """A block in which SIGINT and SIGTERM make `start` and `wait` raise StopRequested; during `stop` they kill."""
        return stop_signals(self._on_signal)

    def start(self, plan: Plan, timeout: float) -> str:
        """Start a service and return its address once it serves. Raises ServiceDied, NotReady, StopRequested."""
        self.launch(plan)
        return self.address(plan, timeout)

    def launch(self, plan: Plan) -> None:
        """Start a service without waiting for it."""
        plan.ready_file.unlink(missing_ok=True)
        child = _Child(plan, self._process(plan), deque(maxlen=_LAST_LINES), time.monotonic())
        self._children.append(child)
        child.watcher = threading.Thread(target=self._watch, args=(child,), name=plan.name, daemon=True)
        child.watcher.start()

    def address(self, plan: Plan, timeout: float) -> str:
        """The address of a launched service, once it serves. Raises ServiceDied, NotReady, StopRequested."""
        child = next(child for child in self._children if child.plan is plan)
        deadline = time.monotonic() + timeout
        while not plan.ready_file.exists():
            now = time.monotonic()
            if now > deadline:
                raise NotReady(f"the {plan.name} service did not get ready within {timeout:g} s")
            if now - self._heard >= self._quiet_seconds:
                self._heard = now
                self._on_quiet(plan.name, now - child.started, child.last_lines[-1] if child.last_lines else None)
            self._look(_POLL_SECONDS)
        return plan.ready_file.read_text(encoding="utf-8").strip()

    def wait(self) -> None:
        """Block until something ends this. Raises ServiceDied, StopRequested."""
        while True:
            self._look(None)

    def check(self) -> None:
        """Raise the error of an event that has happened, if there is one."""
        self._look(0.0)

    def stop(self, grace: float) -> None:
        """End all services, the last started first; one that takes longer than `grace` seconds is killed."""
        self._stopping = True
        for child in reversed(self._children):
            child.process.terminate()
            try:
                child.process.wait(grace)
            except subprocess.TimeoutExpired:
                self._on_line(child.plan.name, f"did not stop within {grace:g} s, killed")
                child.process.kill()
            child.process.wait()
            if child.watcher is not None:
                child.watcher.join()
        self._children.clear()

    def _look(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds for an event, from a watcher or a signal handler, and raise it."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return
        if isinstance(event, int):
            raise StopRequested(event)
        raise ServiceDied(event.plan.name, event.process.wait(), event.last_lines)

    def _on_signal(self, number: int) -> None:
        if self._stopping:
            for child in self._children:
                child.process.kill()
        self._events.put(number)

    def _process(self, plan: Plan) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *service_command(plan)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            bufsize=1,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **plan.environment},
        )

    def _watch(self, child: _Child) -> None:
        assert child.process.stdout is not None
        with child.process.stdout as lines:
            for line in lines:
                self._heard = time.monotonic()
                child.last_lines.append(line.rstrip("\n"))
                self._on_line(child.plan.name, line.rstrip("\n"))
        child.process.wait()
        if not self._stopping:
            self._events.put(child)


def service_command(plan: Plan) -> tuple[str, ...]:
    """Module and arguments of a process that is the service and ends with this process."""
    return ("services.cli.up.supervisor", str(os.getpid()), plan.module, *plan.flags)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when `parent` dies; exit if it is dead already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    gc.disable()  # until it serves: imported modules and loaded weights are never garbage
    module = sys.argv[2]
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
