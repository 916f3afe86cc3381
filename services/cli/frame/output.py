"""Output of a command: its document to stdout, as JSON or as a view, remarks and progress to stderr.

rich is imported when something is shown.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cli.frame.process import print_error, reader_may_leave
from services.cli.frame.views import View

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, TaskID

_STEP_SECONDS = 5.0  # between two lines of steps
FileProgress = Callable[[str, int, int], None]
"""Takes a file's name, how many of its bytes are done, and how many it has."""


def answer(as_json: bool, document: Any, view: Callable[[Any], View]) -> None:
    """Print a command's document: as JSON for programs, or as a view for people, both of its `plain` value."""
    if as_json:
        print_json(document)
    else:
        show(view(plain(document)))


def plain(value: Any) -> Any:
    """A value in JSON's own types: dataclasses by their fields, documents as they are signed, times in ISO 8601."""
    if hasattr(value, "to_document"):
        return value.to_document()
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else str(value) if isinstance(value, Path) else value


def members(value: object, *names: str) -> dict[str, Any]:
    """Some attributes of a value, by their names, each as `plain` has it."""
    return {name: plain(getattr(value, name)) for name in names}


def json_text(document: Any) -> str:
    """One JSON document for stdout, indented on a terminal."""
    indent = 2 if sys.stdout.isatty() else None
    return json.dumps(plain(document), indent=indent, ensure_ascii=sys.stdout.encoding.lower() != "utf-8")


def print_json(document: Any) -> None:
    """Print one JSON document. A reader that closes stdout does not end the command, nor change its exit code."""
    with reader_may_leave(sys.stdout):
        print(json_text(document), flush=True)


def show(view: View) -> None:
    """Print a view to stdout, as `print_json`. Lines are not wrapped."""
    from services.cli.frame.rendering import ShownConsole, print_view

    with reader_may_leave(sys.stdout):
        print_view(view, ShownConsole(highlight=False))  # a new one for each call: sys.stdout may be redirected


def remark(*lines: View) -> None:
    """Print lines to stderr: information besides the result."""
    from services.cli.frame.rendering import print_view

    print_view(list(lines), stderr_console())


def stderr_console() -> Console:
    """The console for progress and remarks."""
    from services.cli.frame.rendering import ShownConsole

    return ShownConsole(stderr=True, highlight=False)


def bars(*columns: ProgressColumn, quiet: bool = False) -> Progress:
    """Progress with these columns, gone when all is done; shown only if stderr is a terminal and it is not `quiet`."""
    from rich.progress import Progress

    console = stderr_console()
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


@contextmanager
def steps(first: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A line with the current step and its duration; yields a function that takes the next step. Log lines of a model
    that loads are steps too. If stderr is no terminal, a step is a line of its own, at most one every five seconds.
    """
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    with bars(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), quiet=quiet) as progress:
        task, shown_at = progress.add_task(first, total=None), time.monotonic()

        def show(step: str) -> None:
            nonlocal shown_at
            progress.update(task, description=step)
            if progress.disable and not quiet and time.monotonic() - shown_at >= _STEP_SECONDS:
                shown_at = time.monotonic()
                print_error(f"{step} …")

        with _steps_of_loading(show):
            yield show


@contextmanager
def _steps_of_loading(show: Callable[[str], None]) -> Iterator[None]:
    class Steps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                print_error(record.getMessage())
            else:
                show(record.getMessage())

    logger, handler = logging.getLogger("services.generation.target"), Steps()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextmanager
def verifying_entries(total: int | None = None, verb: str = "verifying") -> Iterator[Callable[[int], None]]:
    """A count of entries; yields a function that adds to it. With a `total`, shows the remaining time."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    counted = TextColumn(f"{verb} entry {{task.completed:.0f}}")
    with bars(*((counted, BarColumn(), TimeRemainingColumn()) if total else (counted,))) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def transfers(verb: str) -> Iterator[FileProgress]:
    """A bar for each file."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn(f"{verb} {{task.description}}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with bars(*columns) as progress:
        tasks: dict[str, TaskID] = {}

        def show(name: str, position: int, size: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=size)
            progress.update(tasks[name], completed=position)

        yield show
