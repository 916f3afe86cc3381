"""Times inside documents: RFC 3339, UTC, exactly `YYYY-MM-DDThh:mm:ss.mmmZ`, so that text order is time order."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ledger.errors import FormatError

_FORM = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


def timestamp(time: datetime) -> str:
    """A moment (timezone-aware) as document text, cut to whole milliseconds."""
    if time.tzinfo is None:
        raise FormatError("time", "expected a timezone-aware datetime")
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def timestamp_not_before(time: datetime) -> str:
    """The first document text that is not before a moment; bounds on document times compare with it."""
    return timestamp(time + timedelta(microseconds=-time.microsecond % 1000))


def parse_timestamp(text: object, field: str = "time") -> datetime:
    """The moment that document text names. Raises FormatError for anything else."""
    if not isinstance(text, str) or _FORM.fullmatch(text) is None:
        raise FormatError(field, "expected an RFC 3339 UTC time YYYY-MM-DDThh:mm:ss.mmmZ")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise FormatError(field, f"is no time: {error}") from None


def moved(text: str, seconds: float) -> str:
    """The time so many seconds later, or earlier; the same one where the result is beyond year 9999."""
    try:
        return timestamp(parse_timestamp(text) + timedelta(seconds=seconds))
    except OverflowError:
        return text
