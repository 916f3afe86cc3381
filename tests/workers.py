"""pytest-xdist whose workers are forks of a process that has imported the tests: imports take ten seconds of CPU.

    python -m tests.workers 4 -q tests/unit        (the number of workers, then pytest's options)

With `--compile`, kernels are compiled meanwhile: every worker, and every service that tests start, would wait for it.
xdist starts an interpreter for each worker. Here that is this file as a script: it hands its streams to a fork, and
ends with it.
"""

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any

OWN_FOLDER = "TESTS_OWN_FOLDER"
"""The variable with the path of a folder of this worker, for files that several tests share."""


def main(count: int, *options: str) -> int:
    """Run the tests. Returns pytest's exit code."""
    import pytest

    with _compiling() if "--compile" in options else nullcontext():
        options = tuple(option for option in options if option != "--compile")
        with redirect_stdout(StringIO()) as shown:
            code = pytest.main(["--collect-only", "-qq", *options], [_Forgetting()])
    if code:
        print(shown.getvalue())
        return code
    if len(threads := os.listdir("/proc/self/task")) > 1:
        raise RuntimeError(f"cannot fork: a module starts threads when it is imported, {len(threads) - 1} are running")
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        address = str(Path(folder) / "workers")
        listening.bind(address)
        listening.listen(count)
        forks = [get_context("fork").Process(target=_work, args=(listening,)) for _ in range(count)]
        for fork in forks:
            fork.start()
        interpreter = f"popen//python={shlex.join((sys.executable, __file__, address))}"
        try:
            return pytest.main([*options, "--max-worker-restart=0", f"--tx={count}*{interpreter}"])
        finally:
            for fork in forks:
                fork.terminate()


@contextmanager
def _compiling() -> Iterator[None]:
    """A block at whose end all kernels are compiled. Raises CalledProcessError."""
    command = [sys.executable, "-m", "services.cli", "doctor", "--compile"]
    with subprocess.Popen(command) as process:
        yield
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


class _Forgetting:
    """A plugin: a module that skips itself when it is imported does so in each worker again."""

    def pytest_collectreport(self, report: Any) -> None:
        if report.skipped:
            sys.modules.pop(report.nodeid.removesuffix(".py").replace("/", "."), None)


def _work(listening: socket.socket) -> None:
    """In a fork: wait for an interpreter's streams and its command, and take its place."""
    asked, _ = listening.accept()
    command, streams, *_ = socket.recv_fds(asked, 4096, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    exec(command, {"__name__": "__main__"})


def _interpret(address: str, command: str) -> None:
    """As xdist's interpreter: let a fork run the command, and wait for its end."""
    with socket.socket(socket.AF_UNIX) as asking, suppress(KeyboardInterrupt):
        asking.connect(address)
        socket.send_fds(asking, [command.encode()], [0, 1, 2])
        asking.recv(1)


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
    _interpret(sys.argv[1], sys.argv[-1])
