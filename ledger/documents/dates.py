"""The times in documents, found by their types, and how far they may be ahead of the ledger's clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

import msgspec

from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, UnknownDocument
from ledger.encoding.document import Part, Time
from ledger.encoding.text_forms import moved, parse_timestamp, time_of, timestamp
from ledger.errors import ClockAhead

MOST_SKEW_SECONDS = 300
"""The largest accepted difference between two clocks; if it is larger, one of them is wrong."""


def times_of(document: Document) -> Iterator[tuple[str, str]]:
    """Path and text of each time in a document, at any depth, and the time at the beginning of a receipt's id."""
    if isinstance(document, UnknownDocument):
        return
    yield from _times(document, type(document), "")
    if isinstance(document, Receipt):
        yield "receipt_id", timestamp(time_of(document.receipt_id))


def date_of(document: Document) -> str:
    """The time at which a document was made: the latest among its members. Empty for an unknown kind."""
    times = () if isinstance(document, UnknownDocument) else _times(document, type(document), "")
    return max((time for _, time in times), default="")


def ahead_of(document: Document, not_after: str) -> tuple[str, str] | None:
    """Path and text of the latest time in a document, if that is later than `not_after`."""
    path, latest = max(times_of(document), key=lambda each: each[1], default=("", ""))
    return (path, latest) if latest > not_after else None


def check_not_ahead(document: Document, now: str) -> None:
    """Raises ClockAhead for a document with a time more than MOST_SKEW_SECONDS after `now`, the ledger's time."""
    found = ahead_of(document, moved(now, MOST_SKEW_SECONDS))
    if found is not None:
        field, time = found
        seconds = (parse_timestamp(time) - parse_timestamp(now)).total_seconds()
        raise ClockAhead(field, time, now, seconds)


@cache
def _holds_times(kind: Any) -> bool:
    """Whether values of an annotated type can contain times."""
    if kind == Time:
        return True
    if isinstance(kind, type) and issubclass(kind, Part):
        return bool(_members(kind))
    return any(_holds_times(each) for each in get_args(kind) if each is not Ellipsis)


@cache
def _members(kind: type[Part]) -> tuple[tuple[str, Any], ...]:
    """Name and type of the members that contain times."""
    return tuple((each.name, each.type) for each in msgspec.structs.fields(kind) if _holds_times(each.type))


def _times(value: Any, kind: Any, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case Part():
            for name, member in _members(type(value)):
                yield from _times(getattr(value, name), member, f"{path}.{name}" if path else name)
        case str():
            yield path, value
        case Mapping():
            for name, each in value.items():
                yield from _times(each, kind, f"{path}.{name}")
        case tuple():
            for place, each in enumerate(value):
                yield from _times(each, kind, f"{path}[{place}]")
