"""Several services as child processes: started one after another, watched together, callers stopped before the called.

If one ends by itself, all end. Each child has a session of its own, so that Ctrl-C in a terminal reaches only this
process, which stops them in order.
"""

from __future__ import annotations

import os
import queue
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
from typing import IO

from services.cli.frame.process import stop_signals
from services.cli.up.fork_server import SHARED, ForkedProcess, ForkServer, is_supported
from services.client.identity import CA, CERT, KEY

Line = Callable[[str, str], None]
"""Takes the name of a service and a line that it wrote; called from threads."""

Quiet = Callable[[str, float, str | None], None]
"""Takes the name of a service without output for a while, the seconds since its start, and its last line."""

Settings = Mapping[str, object]
"""Settings of a service by name; None and False are not set."""

_LAST_LINES, _LAST_LINES_SECONDS = 20, 1.0
_POLL_SECONDS = 0.05
_QUIET_SECONDS = 4.0


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
    `more` are words after the flags. Services of a higher `rank` stop first, and of the same rank the last started.
    """

    name: str
    module: str
    settings: Settings
    listens_at: str
    ready_file: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    rank: int = 0

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
    process: subprocess.Popen[str] | ForkedProcess
    output: _Output
    started: float


class _Output:
    """Lines that come by a pipe, read by a thread."""

    def __init__(self, name: str, pipe: IO[str], on_line: Line) -> None:
        self._name, self._pipe, self._on_line = name, pipe, on_line
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._pipe as lines:
            for line in lines:
                self.last_lines.append(line.rstrip("\n"))
                self._on_line(self._name, line.rstrip("\n"))

    def finish(self) -> None:
        """Wait for the last lines of a process that has ended; not long, as a child of it may hold the pipe."""
        self._reader.join(_LAST_LINES_SECONDS)


class Supervisor:
    """Use it inside `listening()`, from the main thread, and always call `stop`."""

    def __init__(
        self,
        on_line: Line,
        on_quiet: Quiet = lambda *_: None,
        quiet_seconds: float = _QUIET_SECONDS,
        shared: Sequence[str] = SHARED,
    ) -> None:
        """`on_quiet` is called while a service starts, after each `quiet_seconds` without output of any service. The
        `shared` modules are imported once for all services.
        """
        self._on_line = on_line
        self._on_quiet = on_quiet
        self._quiet_seconds = quiet_seconds
        self._heard = time.monotonic()
        self._children: list[_Child] = []
        self._events: queue.SimpleQueue[int | _Child] = queue.SimpleQueue()
        self._stopping = False
        self._shared = shared
        self._forks: ForkServer | None = None
        self._output_of_forks: _Output | None = None

    def listening(self) -> AbstractContextManager[None]:
        """A block in which SIGINT and SIGTERM make `start` and `wait` raise StopRequested; during `stop` they kill."""
        return stop_signals(self._on_signal)

    def start(self, plan: Plan, timeout: float) -> str:
        """Start a service and return its address once it serves. Raises ServiceDied, NotReady, StopRequested."""
        self.launch(plan)
        return self.address(plan, timeout)

    def launch(self, plan: Plan) -> None:
        """Start a service without waiting for it, but for the imports before the first one. Raises ServiceDied,
        StopRequested.
        """
        plan.ready_file.unlink(missing_ok=True)
        started = time.monotonic()
        process = self._process(plan)
        assert process.stdout is not None
        child = _Child(plan, process, _Output(plan.name, process.stdout, self._hear), started)
        self._children.append(child)
        threading.Thread(target=self._watch, args=(child,), name=f"{plan.name}, end", daemon=True).start()

    def address(self, plan: Plan, timeout: float) -> str:
        """The address of a launched service, once it serves. Raises ServiceDied, NotReady, StopRequested."""
        child = next(child for child in self._children if child.plan is plan)
        deadline = time.monotonic() + timeout
        while not plan.ready_file.exists():
            if time.monotonic() > deadline:
                raise NotReady(f"the {plan.name} service did not get ready within {timeout:g} s")
            last_lines = child.output.last_lines
            self._tell_if_quiet(plan.name, child.started, last_lines[-1] if last_lines else None)
            self._look(_POLL_SECONDS)
        return plan.ready_file.read_text(encoding="utf-8").strip()

    def wait(self) -> None:
        """Block until something ends this. Raises ServiceDied, StopRequested."""
        self._close_forks()
        while True:
            self._look(None)

    def check(self) -> None:
        """Raise the error of an event that has happened, if there is one."""
        self._look(0.0)

    def stop(self, grace: float) -> None:
        """End all services, in the order of `Plan.rank`; one that takes longer than `grace` seconds is killed."""
        self._stopping = True
        self._close_forks()
        self._children.sort(key=lambda each: each.plan.rank)
        for child in reversed(self._children):
            child.process.terminate()
            try:
                child.process.wait(grace)
            except subprocess.TimeoutExpired:
                self._on_line(child.plan.name, f"did not stop within {grace:g} s, killed")
                child.process.kill()
            child.process.wait()
            child.output.finish()
        self._children.clear()

    def _tell_if_quiet(self, name: str, started: float, last_line: str | None) -> None:
        now = time.monotonic()
        if now - self._heard >= self._quiet_seconds:
            self._heard = now
            self._on_quiet(name, now - started, last_line)

    def _look(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds for an event, from a watcher or a signal handler, and raise it."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return
        if isinstance(event, int):
            raise StopRequested(event)
        raise ServiceDied(event.plan.name, event.process.wait(), event.output.last_lines)

    def _on_signal(self, number: int) -> None:
        if self._stopping:
            for child in self._children:
                child.process.kill()
        self._events.put(number)

    def _process(self, plan: Plan) -> subprocess.Popen[str] | ForkedProcess:
        own = {name: value for name, value in os.environ.items() if name not in (CA, CERT, KEY)}  # they have no TLS
        streams = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}  # as they are read
        environment = {**own, **streams, **plan.environment}
        if not is_supported():
            bound = ("services.cli.up.bound_service", str(os.getpid()))
            return subprocess.Popen(
                [sys.executable, "-P", "-m", *bound, plan.module, *plan.flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                errors="replace", bufsize=1, start_new_session=True, env=environment,
            )  # fmt: skip
        if self._forks is None:
            self._forks = ForkServer(self._shared, environment)
            self._output_of_forks = _Output("kolm", self._forks.stderr, self._on_line)
        started = time.monotonic()

        def waiting() -> None:
            self._tell_if_quiet(plan.name, started, None)
            self.check()

        try:
            return self._forks.fork(plan.name, plan.module, plan.flags, plan.environment, waiting)
        except OSError as error:
            code, output = self._close_forks(), self._output_of_forks
            raise ServiceDied(plan.name, code, (output and output.last_lines) or [str(error)]) from error

    def _close_forks(self) -> int:
        """End the process that starts services, if it runs; returns its exit code."""
        forks, self._forks = self._forks, None
        code = 0 if forks is None else forks.close()
        if self._output_of_forks is not None:
            self._output_of_forks.finish()
        return code

    def _hear(self, name: str, line: str) -> None:
        self._heard = time.monotonic()
        self._on_line(name, line)

    def _watch(self, child: _Child) -> None:
        """Notice the end of a service."""
        child.process.wait()
        child.output.finish()
        if not self._stopping:
            self._events.put(child)
