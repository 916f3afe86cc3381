"""Processes forked from a process with the common imports, which take seconds of CPU in each new process."""

import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkServerContext
from typing import IO, Any, Self

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.preloaded"])
_PATIENCE = 240.0  # seconds; only a test that fails gets there


class Forked:
    """`python -m MODULE …` as a fork: as much of `subprocess.Popen` as tests of services ask for, from any thread."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        together: bool = False,
        context: ForkContext | ForkServerContext = FORKED,
    ) -> None:
        """`environment` takes the place of this process's; `together`: what goes to stderr comes by stdout."""
        out, err = context.Pipe(duplex=False), context.Pipe(duplex=False)
        self.stdout, self.stderr = _text(out[0]), _text(err[0])
        own = dict(os.environ if environment is None else environment)
        told = (module, arguments, own, os.getcwd(), out[1], out[1] if together else err[1])
        self._process: Any = context.Process(target=_run, args=told)
        self._process.start()
        self._collecting = threading.Lock()
        self.pid = int(self._process.pid or 0)
        for ours in (out[1], err[1]):
            ours.close()

    @property
    def returncode(self) -> int | None:
        with self._collecting:
            return self._process.exitcode  # type: ignore[no-any-return]

    poll = returncode.fget

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it may have ended since
            if self.returncode is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if not multiprocessing.connection.wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        with self._collecting:
            self._process.join()
            return int(self._process.exitcode)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process if it still runs."""
        self.kill()
        self.wait()
        self._close()

    def _close(self) -> None:
        self.stdout.close()
        self.stderr.close()

    __del__ = _close


def ran(module: str, *arguments: str, **options: Any) -> tuple[int, str]:
    """Exit code and stderr of a process that ends by itself; `options` go to `Forked`."""
    with Forked(module, *arguments, **options) as process:
        _, errors = process.communicate(_PATIENCE)
        return process.wait(), errors


def _text(pipe: Connection) -> IO[str]:
    with pipe:
        return os.fdopen(os.dup(pipe.fileno()), encoding="utf-8", errors="replace")


def _run(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str, out: Connection, err: Connection
) -> None:
    """In the process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for stream, pipe in enumerate((out, err), 1):
        os.dup2(pipe.fileno(), stream)
    for pipe in {out, err}:
        pipe.close()
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.argv = [module, *arguments]
    warnings.filterwarnings("ignore", ".*found in sys.modules after import", RuntimeWarning)  # it was imported before
    runpy.run_module(module, run_name="__main__", alter_sys=True)
