"""Where things go: data to stdout, talk to stderr; tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[dim]–[/]"}
OUTCOME_STYLES = {"EXACT": "green", "DEVIATION": "bold red", "UNREPLAYABLE": "yellow"}


def data() -> Console:
    """For what was asked for. Made anew, so that it follows a redirected sys.stdout."""
    return Console(highlight=False)


def talk() -> Console:
    """For progress, remarks and summaries."""
    return Console(stderr=True, highlight=False)


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


def printable(text: str) -> str:
    """Model output for a terminal: control characters other than tab and newline do not reach it."""
    return "".join(character if character in "\n\t" or character.isprintable() else "�" for character in text)
