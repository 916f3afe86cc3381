"""Progress on a terminal's stderr, gone when all is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from services.cli.terminal.output import talk

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

FileProgress = Callable[[str, int, int], None]
"""Takes a file's name, how many of its bytes are done, and how many it has."""


def bars(*columns: ProgressColumn, quiet: bool = False) -> Progress:
    """Progress with these columns, shown only if stderr is a terminal and it is not to be `quiet`."""
    from rich.progress import Progress

    console = talk()
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


@contextmanager
def steps(first: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A line of what is being done, and for how long by now: takes each next step."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    with bars(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), quiet=quiet) as progress:
        task = progress.add_task(first, total=None)
        yield lambda step: progress.update(task, description=step)


@contextmanager
def verifying_entries() -> Iterator[Callable[[int], None]]:
    """Counts entries: takes how many more are verified."""
    from rich.progress import TextColumn

    with bars(TextColumn("verifying entry {task.completed:.0f}")) as progress:
        task = progress.add_task("", total=None)
        yield lambda count: progress.advance(task, count)


@contextmanager
def answers(lines: int, done: int) -> Iterator[Callable[[int, int], None]]:
    """A bar of a batch's lines, of which so many are done: takes how many are, and how many failed of them."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with bars(*columns) as progress:
        task = progress.add_task("", total=lines, completed=done)
        yield lambda now, failed: progress.update(task, completed=now, description=f"{failed} failed" if failed else "")


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
