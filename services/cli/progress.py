"""Progress bars of files that are hashed, uploaded or downloaded; on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from services.cli.output import talk

FileProgress = Callable[[str, int, int], None]
"""Takes a file's name, how many of its bytes are done, and how many it has."""


@contextmanager
def transfers(verb: str) -> Iterator[FileProgress]:
    """A bar for each file, gone when all is done."""
    console = talk()
    columns = (TextColumn(f"{verb} {{task.description}}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def show(name: str, position: int, size: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=size)
            progress.update(tasks[name], completed=position)

        yield show
