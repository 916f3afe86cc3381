"""Views of documents for people, as values. rich draws them (`rendering.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

OUTCOME_STYLES = {
    "EXACT": "green", "SAME": "green", "CONSISTENT": "green", "DEVIATION": "bold red", "INCONSISTENT": "bold red",
    "UNREPLAYABLE": "yellow", "UNSTABLE": "yellow", "UNCHECKED": "yellow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Styled:
    """Text in a style of rich's. All other text is shown as it is: views hold no markup."""

    text: str
    style: str


Line = str | Styled | tuple[str | Styled, ...]
"""A line, or a cell of a table; several parts if their styles differ."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `value` is a path into a row, with dots, or a function from a row to its cell. Numbers are
    aligned `right`; values to be copied stay `whole`, on one line.
    """

    title: str
    value: str | Callable[[Any], Line]
    right: bool = False
    whole: bool = False

    def cell(self, row: Any) -> Line:
        """A dash for a value that is missing."""
        if callable(self.value):
            return self.value(row)
        found = at(row, self.value)
        return DASH if found is None else str(found)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a document, and the columns to show; without titles, no header."""

    columns: tuple[Column, ...]
    rows: tuple[Any, ...]


View = Line | Table | list[Any]
"""A line, a table, or several views below each other."""

DASH = Styled("–", "dim")
MARKS: Mapping[bool | None, Styled] = {True: Styled("✓", "green"), False: Styled("✗", "red"), None: DASH}


def table(rows: Iterable[Any], *columns: Column, empty: str | None = None) -> View:
    """A table of rows; `empty` is shown if there are no rows."""
    kept = tuple(rows)
    return empty if empty is not None and not kept else Table(columns, kept)


def facts(*rows: tuple[Line, ...] | None) -> Table:
    """Names and values in a table without a header; rows that are None are left out."""
    kept = [row for row in rows if row is not None]
    width = max(map(len, kept), default=0)
    return Table(tuple(Column("", itemgetter(place)) for place in range(width)), tuple(kept))


def at(document: Any, path: str) -> Any:
    """The value at a path with dots; None if a part of the path is None."""
    for name in path.split("."):
        if document is None:
            return None
        document = document[name]
    return document


def joined(parts: Iterable[Line], separator: str = ", ") -> tuple[str | Styled, ...]:
    """Lines as one, with a separator between two of them."""
    found: list[str | Styled] = []
    for part in parts:
        found += [separator] * bool(found) + list(part if isinstance(part, tuple) else (part,))
    return tuple(found)


def counted(number: int, noun: str) -> str:
    """A count with its noun: 1 shard, 2 shards."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def outcome(name: str | None, tokens: int | None = None) -> Styled:
    """A verdict's outcome in its colour; a dash for None, a receipt without a verdict. EXACT over no `tokens`, as of a
    request that ended before its first one, is shown as "nothing to compare".
    """
    if name == "EXACT" and tokens == 0:
        return Styled("nothing to compare", "dim")
    return DASH if name is None else Styled(name, OUTCOME_STYLES[name])


def whose_replay(verification: str | None, replayed_by: str | None) -> Line:
    """How and by whom a verdict's stream was recomputed; only the auditor's own engine is independent."""
    if verification is None:
        return Styled("(by an unknown engine)", "dim")
    if verification == "reference":
        return "by the auditor's own engine, along the output: likely under the weights or not, never exact"
    if verification == "again":
        return (Styled("by the audited engine, asked again with speculation off", "yellow"), "")
    if replayed_by == "auditor":
        return f"by the auditor's own engine ({verification})"
    return (Styled("by the audited server, which is not independent", "yellow"), f" ({verification})")


def short(identifier: str) -> str:
    """An identifier for a narrow column: its kind, and the first digits of its digest. JSON never shortens."""
    kind, _, digest = identifier.rpartition(":")
    return f"{kind.removesuffix(':sha256') or kind}:{digest[:12]}…" if kind else identifier


def size(count: int) -> str:
    """A number of bytes."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count:,} bytes"
