"""`--help`, of commands and of services: one layout, at most 80 columns wide, without markup."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

_NARROWEST, _WIDEST = 50, 80
_NAMES = 24  # columns for names; longer ones have a line of their own


@dataclass(frozen=True, slots=True)
class Row:
    """A flag or a command, what it means, and what stands in brackets after that."""

    name: str
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a title; without rows it is left out."""

    title: str
    rows: tuple[Row, ...]


def help_page(usage: str, summary: str, sections: Sequence[Section], closing: str = "") -> str:
    """The page, with a newline at its end."""
    width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST) - 2
    parts = [f"Usage: {usage}", textwrap.fill(" ".join(summary.split()), width)]
    parts += [_section(section, width) for section in sections if section.rows]
    parts += [textwrap.fill(closing, width)] if closing else []
    return "\n\n".join(parts) + "\n"


def _section(section: Section, width: int) -> str:
    names = min(max(len(row.name) for row in section.rows), _NAMES)
    return "\n".join([f"{section.title}:", *(_row(row, names + 4, width) for row in section.rows)])


def _row(row: Row, column: int, width: int) -> str:
    notes = f"[{'; '.join(row.notes)}]" if row.notes else ""
    text = " ".join([*row.text.split(), notes]).strip()
    lines = textwrap.wrap(text, width - column, break_on_hyphens=False) or [""]
    first = f"  {row.name}".ljust(column)
    beside = len(first) == column and not first[-2:].strip()
    rest = lines[1:] if beside else lines
    return "\n".join([(first + lines[0] if beside else first).rstrip(), *(" " * column + line for line in rest)])
