"""Data go to stdout, remarks to stderr; people get tables, programs JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from services.cli.terminal.steering import STEERING

MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[dim]–[/]"}
_NARROW, _SPACE = 10, 3
"""Characters that are left to a column whose values may be broken, and those between two columns."""
_WIDEST = 10_000
OUTCOME_STYLES = {"EXACT": "green", "DEVIATION": "bold red", "UNREPLAYABLE": "yellow"}


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
        self.quiet = True

    def print(self, *objects: Any, crop: bool = False, **how: Any) -> None:
        """As rich's, which would cut off what is wider than the terminal."""
        super().print(*objects, crop=crop, **how)


class ShownTable(Table):
    """A table that is wider than a narrow terminal, rather than cut what its reader copies."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=_WIDEST)
        return super().__rich_console__(
            console, options.update(max_width=max(options.max_width, self._least(wide, console)))
        )

    def _least(self, options: ConsoleOptions, console: Console) -> int:
        """Columns, with the space between two of them."""
        return sum(_SPACE + self._least_of(column, options, console) for column in self.columns)

    def _least_of(self, column: Column, options: ConsoleOptions, console: Console) -> int:
        measured = [Measurement.get(console, options, cell) for cell in (column.header, *column.cells)]
        if column.no_wrap:
            return max(each.maximum for each in measured)
        return min(_NARROW, max(each.minimum for each in measured))


def data() -> Console:
    """The console for results. A new one for each call, so that it follows a redirected sys.stdout."""
    return ShownConsole(highlight=False)


def talk() -> Console:
    """The console for progress, remarks and summaries."""
    return ShownConsole(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document, indented on a terminal."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, indent=indent, ensure_ascii=sys.stdout.encoding.lower() != "utf-8"))


def answer(as_json: bool, document: Callable[[], Any], view: Callable[[], RenderableType]) -> None:
    """Print the document for programs, or the view for people. Text is printed as it is: no markup, no wrapping."""
    if as_json:
        print_json(document())
        return
    shown = view()
    data().print(shown, soft_wrap=isinstance(shown, str | Text), markup=not isinstance(shown, str))


def facts(*rows: tuple[str, str]) -> Table:
    """Names and values in a table without a header."""
    made = table("", "")
    made.show_header = False
    for name, value in rows:
        made.add_row(name, value)
    return made


def table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """A table; columns in `right` hold numbers, those in `whole` what is copied: their values stay on one line."""
    made = ShownTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        justify: JustifyMethod = "right" if column in right else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)
    return made


def counted(number: int, noun: str) -> str:
    """A count with its noun: 1 shard, 2 shards."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def outcome(name: str | None, tokens: int | None = None) -> str:
    """A verdict's outcome in its colour; a dash for None, which is a receipt without a verdict. EXACT over no `tokens`,
    as for a request that ended before its first one, says nothing about an answer.
    """
    if name == "EXACT" and tokens == 0:
        return "[dim]nothing to compare[/]"
    return "[dim]–[/]" if name is None else f"[{OUTCOME_STYLES[name]}]{name}[/]"


def whose_replay(verification: str | None, replayed_by: str | None) -> str:
    """How and by whom a verdict's stream was computed again; only an engine of the auditor's own is independent."""
    if verification is None:
        return "[dim](it is not said by whom)[/]"
    if replayed_by == "auditor":
        return f"by the auditor's own engine ({verification})"
    return f"[yellow]by the audited server, which is not independent[/] ({verification})"


def short(identifier: str, digits: int = 12) -> str:
    """An identifier for a narrow column: its kind, and the first digits of its digest. JSON never shortens."""
    kind, _, digest = identifier.rpartition(":")
    return f"{kind.removesuffix(':sha256') or kind}:{digest[:digits]}…" if kind else identifier


def size(count: int) -> str:
    """A number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count:,} bytes"
