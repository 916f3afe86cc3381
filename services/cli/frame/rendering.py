"""Views drawn by rich: tables, lines and styles on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column as TableColumn
from rich.table import Table as RichTable
from rich.text import Text

from services.cli.frame.process import STEERING, discard
from services.cli.frame.views import Styled, Table, View

_NARROW, _SPACE = 10, 3
"""Least width of a column whose values may be broken, and the space between two columns, in characters."""
_WIDEST = 10_000


class ShownConsole(Console):
    """Shows text from callers, models and ledgers without the characters that would control the terminal.

    They are left out, not replaced, because rich counts no width for them.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(STEERING.sub("", segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """A reader may close stderr and still read the results. A command whose results are closed ends."""
        if not self.stderr:
            raise
        discard(sys.stderr)

    def print(self, *objects: Any, crop: bool = False, **how: Any) -> None:
        """Rich's print, which would otherwise cut off what is wider than the terminal."""
        super().print(*objects, crop=crop, **how)


class ShownTable(RichTable):
    """A table that is wider than a narrow terminal, rather than cut what its reader copies."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=_WIDEST)
        least = sum(_SPACE + self._least(column, wide, console) for column in self.columns)
        return super().__rich_console__(console, options.update(max_width=max(options.max_width, least)))

    def _least(self, column: TableColumn, options: ConsoleOptions, console: Console) -> int:
        measured = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
        if column.no_wrap:
            return max(each.maximum for each in measured)
        return min(_NARROW, max(each.minimum for each in measured))


def print_view(view: View, console: Console) -> None:
    """Print each part by itself: lines are not broken, tables fit the terminal if possible."""
    for part in view if isinstance(view, list) else [view]:
        if isinstance(part, list):
            print_view(part, console)
        else:
            console.print(drawn(part), soft_wrap=not isinstance(part, Table))


def drawn(view: View) -> RenderableType:
    """The view as rich prints it."""
    if isinstance(view, list):
        return Group(*map(drawn, view))
    if isinstance(view, Table):
        return _table(view)
    parts = view if isinstance(view, tuple) else (view,)
    return Text.assemble(*((part.text, part.style) if isinstance(part, Styled) else part for part in parts))


def _table(view: Table) -> ShownTable:
    made = ShownTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    made.show_header = any(column.title for column in view.columns)
    for column in view.columns:
        made.add_column(
            column.title, justify="right" if column.right else "left", overflow="fold", no_wrap=column.whole
        )
    for row in view.rows:
        made.add_row(*(drawn(column.cell(row)) for column in view.columns))
    return made
