"""Where things go: data to stdout, talk to stderr; tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[dim]–[/]"}
OUTCOME_STYLES = {"EXACT": "green", "DEVIATION": "bold red", "UNREPLAYABLE": "yellow"}
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, those that turn the direction of writing round, and halves of characters."""


class ShownConsole(Console):
    """Shows what callers, models and ledgers say, and lets none of it steer the terminal: styles are ours alone.

    What would is left out, not replaced: rich gives it no width, and columns are as wide as it says.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_STEERING.sub("", segment.text), segment.style)


def data() -> Console:
    """For what was asked for. Made anew, so that it follows a redirected sys.stdout."""
    return ShownConsole(highlight=False)


def talk() -> Console:
    """For progress, remarks and summaries."""
    return ShownConsole(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """One JSON document, indented where a person looks at it."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, indent=indent, ensure_ascii=False))


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table in the house style; columns in `right` hold numbers."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def outcome(name: str | None) -> str:
    """The word of a verdict in its colour; a receipt that nobody has replayed has none."""
    return "[dim]–[/]" if name is None else f"[{OUTCOME_STYLES[name]}]{name}[/]"


def short(identifier: str, digits: int = 12) -> str:
    """An identifier for a narrow column: its kind, and the first digits of its digest. JSON never shortens."""
    kind, _, digest = identifier.rpartition(":")
    return f"{kind.removesuffix(':sha256') or kind}:{digest[:digits]}…" if kind else identifier


def size(count: int) -> str:
    """A number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count:,} bytes"


def printable(text: str) -> str:
    """`text` for a terminal, without what would steer it."""
    return _STEERING.sub("\N{REPLACEMENT CHARACTER}", text)
