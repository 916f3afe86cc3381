"""A process that imports the services' modules once, and its forks, which become services.

The imports take 0.4 to 2 s of CPU and 80 to 200 MB in each process that makes them by itself. The forks share these
pages, and are adopted by the supervisor (PR_SET_CHILD_SUBREAPER), which waits for them as for its own children. For
Linux; elsewhere a supervisor starts a new interpreter for each service.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from services.generation.target.without_torch import hide_torch

SHARED: Sequence[str] = (
    "services.generation.serving",
    "services.auditor.own_engine",
    "services.auditor.serving",
    "services.ledger.__main__",
    "services.registry.__main__",
    "services.http.__main__",
    "services.explorer.__main__",
)
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36  # <linux/prctl.h>
_ANSWER_BYTES = 32  # the number of a process
_WAIT_MS = 50
_MOST_MS = (1 << 31) - 1  # that poll takes
_COMMAND_BYTES = 4096  # of a fork's command line, as `ps` shows it


def is_supported() -> bool:
    """Whether the system has what this needs. Sandboxes and old kernels have no pidfd_open."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ForkedProcess:
    """A fork: the part of `subprocess.Popen` that a supervisor uses. Thread-safe."""

    def __init__(self, process_id: int, stdout: IO[str]) -> None:
        self.pid, self.stdout = process_id, stdout
        self._descriptor = os.pidfd_open(process_id)
        self._lock = threading.Lock()
        self._code: int | None = None

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self._descriptor, number)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        if not ended.poll(None if timeout is None else min(1e3 * timeout, _MOST_MS)):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        with self._lock:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self._code

    def __del__(self) -> None:
        os.close(self._descriptor)


class ForkServer:
    """Starts the process, which imports until it answers the first call of `fork`. Used by one thread."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """`modules` are imported once. `environment` is the process's; a fork gets the changes given to `fork`. The
        current folder, which may hold any module, is not on its path (-P). Its own lines come by the pipe `stderr`.
        """
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._socket, its_own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_own:
            arguments = (str(os.getpid()), str(its_own.fileno()), ",".join(modules), " " * _COMMAND_BYTES)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *arguments], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", errors="replace", env=environment,
                pass_fds=[its_own.fileno()], start_new_session=True,
            )  # fmt: skip
        assert self._process.stderr is not None
        self.stderr: IO[str] = self._process.stderr

    def fork(
        self,
        name: str,
        module: str,
        flags: Sequence[str],
        environment: Mapping[str, str],
        waiting: Callable[[], None] = lambda: None,
    ) -> ForkedProcess:
        """A process that runs `python -m MODULE FLAGS`, with the changes of the environment; its standard output and
        error come by the pipe `stdout`. `waiting` is called again and again until it runs, and ends the process that
        imports if it raises. Raises OSError.
        """
        output, its_own = os.pipe()
        stdout = os.fdopen(output, encoding="utf-8", errors="replace")
        try:
            with os.fdopen(its_own, "wb"), os.fdopen(os.memfd_create(name), "wb") as call:  # of any size
                call.write(json.dumps([name, module, list(flags), dict(environment)]).encode())
                call.flush()
                socket.send_fds(self._socket, [b"\0"], [its_own, call.fileno()])
            process_id = self._answer(waiting)
        except ConnectionError as error:
            stdout.close()
            raise OSError("the process that starts services has ended") from error
        except BaseException:
            stdout.close()
            raise
        return ForkedProcess(process_id, stdout)

    def _answer(self, waiting: Callable[[], None]) -> int:
        answered = select.poll()
        answered.register(self._socket, select.POLLIN)
        try:
            while not answered.poll(_WAIT_MS):
                waiting()
        except BaseException:
            self._process.kill()
            with suppress(ConnectionError):  # or else it has started the service at this moment
                started = self._receive()
                os.kill(started, signal.SIGKILL)
                os.waitpid(started, 0)
            raise
        return self._receive()

    def _receive(self) -> int:
        """The number of the started process. Raises ConnectionError if the process that starts it has ended."""
        answer = self._socket.recv(_ANSWER_BYTES)
        if not answer:
            raise ConnectionResetError
        return int(answer)

    def close(self) -> int:
        """End the process; its forks stay. Returns its exit code."""
        self._socket.close()
        self._process.terminate()  # also if it still imports
        return self._process.wait()


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when `parent` dies; exit if it is dead already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def run_module(module: str, flags: Sequence[str]) -> None:
    """Run a service's module as `python -m` does, without garbage collection until it serves: imported modules and
    loaded weights are never garbage.
    """
    gc.disable()
    sys.argv = [module, *flags]
    warnings.filterwarnings("ignore", ".*found in sys.modules after import", RuntimeWarning)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _serve(supervisor: int, connection: socket.socket, modules: Sequence[str]) -> tuple[str, list[str]]:
    """Answer calls until the supervisor closes the connection; in a fork, return its module and flags. The first fork,
    whose start takes longest, does not wait for all modules.
    """
    first, rest = modules[:1], modules[1:]
    _import_once(first)
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, 1, 2)
        if not message:
            sys.exit()
        output, call = descriptors
        between = os.fork()
        if not between:
            parent = os.getpid()
            if os.fork():  # this parent ends, so that the supervisor adopts its child
                os._exit(0)
            while os.getppid() == parent:
                time.sleep(0.001)
            die_with_parent(supervisor)
            os.setsid()
            for stream in (1, 2):
                os.dup2(output, stream)
            os.close(output)
            connection.send(str(os.getpid()).encode())
            connection.close()
            name, module, flags, environment = json.loads(os.pread(call, os.fstat(call).st_size, 0))
            os.close(call)
            os.environ.update(environment)
            _show_command(name, module, flags)
            return module, flags
        if os.waitpid(between, 0)[1]:
            sys.exit(1)  # it could not fork, and has told why
        os.close(output)
        os.close(call)
        _import_once(rest)
        rest = ()


def _show_command(name: str, module: str, flags: Sequence[str]) -> None:
    """Show the service's name and command in `ps` and `top`: written over this process's arguments (proc(5))."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode())
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    first, end = int(fields[45]), int(fields[46])
    command = "\0".join((sys.executable, "-m", module, *flags)).encode(errors="surrogateescape")
    ctypes.memmove(first, command[: end - first - 1].ljust(end - first, b"\0"), end - first)


def _import_once(modules: Sequence[str]) -> None:
    if not modules:
        return
    with suppress(ImportError):
        hide_torch()
    for module in modules:
        with suppress(ImportError):  # its service reports what is not installed
            importlib.import_module(module)
    gc.freeze()  # no fork copies these pages for a collection


if __name__ == "__main__":
    supervisor = int(sys.argv[1])
    die_with_parent(supervisor)
    gc.disable()
    modules = [module for module in sys.argv[3].split(",") if module]
    run_module(*_serve(supervisor, socket.socket(fileno=int(sys.argv[2])), modules))
