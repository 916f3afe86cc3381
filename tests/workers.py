"""Worker processes that share out the tests by module.

    python -m pytest -p tests.workers --workers 4

Tests are collected once, which takes ten seconds, and the workers are forked from that process. Each worker makes a
session's fixtures for itself.
"""

import atexit
import os
import signal
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import pytest

_FORK = get_context("fork")
_PATIENCE = 60.0  # seconds for a test that is interrupted, and for the ends of its fixtures


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="Share the tests out to this many processes, by module.")


def own_folders(folder: Path) -> None:
    """Let this process and its children keep their state in a folder, and nowhere else."""
    os.environ["XDG_STATE_HOME"] = str(folder)
    # Commands without --data-dir: not the folder of a `kolm up` that runs in this checkout.
    os.environ["KOLM_DATA_DIR"] = str(folder / "data")
    # Auditors wait for servers that load: here for servers of this worker alone, whatever else runs from this checkout.
    os.environ["KOLM_LOADING"] = str(folder / "loading")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count, options = session.config.getoption("--workers"), session.config.option
    if not count or options.collectonly or (session.testsfailed and not options.continue_on_collection_errors):
        return None
    modules = [list(items) for _, items in groupby(session.items, lambda item: item.nodeid.partition("::")[0])]
    taken = _FORK.Value("i", 0)
    if len(threads := os.listdir("/proc/self/task")) > 1:
        raise pytest.UsageError(f"cannot fork: a module starts threads at its import, {len(threads) - 1} are running")
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    workers = [_Worker(session, number, modules, taken) for number in range(count)]
    try:
        _report(session, workers)
    finally:
        for worker in workers:
            worker.stop()
    return True


class _Worker:
    """A process that takes one module after another."""

    def __init__(
        self, session: pytest.Session, number: int, modules: Sequence[list[pytest.Item]], taken: "Synchronized[int]"
    ) -> None:
        self.reports, sent = _FORK.Pipe(duplex=False)
        self.running: tuple[str, Any] = f"worker {number}", ("", None, "")  # the test's identifier and location
        self._process = _FORK.Process(target=_work, args=(session, number, _items(modules, taken), sent))
        self._process.start()
        sent.close()

    def stop(self) -> None:
        """Interrupt the process if it still runs."""
        if self._process.is_alive():
            os.kill(self._process.pid or 0, signal.SIGINT)
        self._process.join(_PATIENCE)
        self._process.kill()
        self._process.join()

    def failure(self) -> pytest.TestReport | None:
        """A report of a process that has ended before its time."""
        self._process.join()
        if self._process.exitcode == 0:
            return None
        why = f"the worker has ended: exit code {self._process.exitcode}"
        return pytest.TestReport(*self.running, {}, "failed", why, "call")


def _report(session: pytest.Session, workers: Sequence[_Worker]) -> None:
    """Pass on the reports of workers until the last one has ended; tests that none has begun have failed."""
    hook, running = session.config.hook, {worker.reports: worker for worker in workers}
    left = {item.nodeid: item.location for item in session.items}
    while running:
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            try:
                sent = ready.recv()
            except EOFError:
                if failure := running.pop(ready).failure():
                    hook.pytest_runtest_logreport(report=failure)
                continue
            if isinstance(sent, tuple):
                running[ready].running = sent
                left.pop(sent[0], None)
            else:
                report = hook.pytest_report_from_serializable(config=session.config, data=sent)
                hook.pytest_runtest_logreport(report=report)
                if report.when == "teardown":
                    hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
    for test in left.items():
        hook.pytest_runtest_logreport(report=pytest.TestReport(*test, {}, "failed", "its worker has ended", "call"))


def _items(modules: Sequence[list[pytest.Item]], taken: "Synchronized[int]") -> Iterator[pytest.Item]:
    """Those of modules that no other worker has taken; a worker knows of one more than it runs."""
    while True:
        with taken.get_lock():
            module = taken.value
            taken.value += 1
        if module >= len(modules):
            return
        yield from modules[module]


def _work(session: pytest.Session, number: int, items: Iterator[pytest.Item], sent: Connection) -> None:
    """In the process."""
    atexit._clear()  # type: ignore[attr-defined]  # the parent does that
    config, reporter = session.config, _Reporter(session.config, sent)
    _begin(config, number)
    config.pluginmanager.register(reporter)
    try:
        try:
            item = next(items, None)
            while item and not session.shouldfail:
                following = next(items, None)
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                item = following
        finally:
            session._setupstate.teardown_exact(None)
        config._ensure_unconfigure()
        atexit._run_exitfuncs()  # type: ignore[attr-defined]
    except BaseException:
        reporter.fail(traceback.format_exc())


def _begin(config: pytest.Config, number: int) -> None:
    """Separate from the parent what it has open and what it will delete."""
    own_folders(Path(tempfile.mkdtemp(dir=os.environ.get("XDG_STATE_HOME"))))
    paths: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    paths._basetemp = paths.getbasetemp() / f"worker-{number}"
    paths._basetemp.mkdir(mode=0o700)
    config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115 (as long as the process)
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()


class _Reporter:
    """A plugin that tells the parent what happens."""

    def __init__(self, config: pytest.Config, sent: Connection) -> None:
        self._config, self._sent = config, sent
        self._running: Any = ("a worker", ("", None, ""))

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._running = nodeid, location
        self._sent.send(self._running)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._sent.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def fail(self, why: str) -> None:
        self.pytest_runtest_logreport(pytest.TestReport(*self._running, {}, "failed", why, "teardown"))
