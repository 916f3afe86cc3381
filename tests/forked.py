"""Processes that are forks of one that has imported what most of them need, which takes each seconds of CPU."""

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import IO, Self

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["services.cli.main", "services.ledger.__main__", "services.generation.serving", "tests.fakes.datastores"]
)


class Forked:
    """`python -m MODULE …` as a fork: as much of `subprocess.Popen` as tests of services ask for."""

    def __init__(self, module: str, *arguments: str) -> None:
        out, err = FORKED.Pipe(duplex=False), FORKED.Pipe(duplex=False)
        self.stdout, self.stderr = _text(out[0]), _text(err[0])
        told = (module, arguments, dict(os.environ), os.getcwd(), out[1], err[1])
        self._process = FORKED.Process(target=_run, args=told)
        self._process.start()
        self.pid = int(self._process.pid or 0)
        for ours in (out[1], err[1]):
            ours.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it may have ended since
            if self._process.exitcode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it has not ended in time"
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Killed where it still runs."""
        self.kill()
        self.wait()
        self._close()

    def _close(self) -> None:
        self.stdout.close()
        self.stderr.close()

    __del__ = _close


def _text(pipe: Connection) -> IO[str]:
    with pipe:
        return os.fdopen(os.dup(pipe.fileno()), encoding="utf-8")


def _run(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str, out: Connection, err: Connection
) -> None:
    """In the process."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for stream, pipe in enumerate((out, err), 1):
        os.dup2(pipe.fileno(), stream)
        pipe.close()
    sys.argv = [module, *arguments]
    sys.modules.pop(f"{module}.__main__", None)  # runpy warns of what it runs a second time
    runpy.run_module(module, run_name="__main__", alter_sys=True)
