"""Words of the command line as values. Each function raises UsageError, which names the option."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from services.cli.failures.exits import UsageError

Number = TypeVar("Number", int, float)

_AGE = re.compile(r"(\d{1,6})([smhd])")
_SCHEME = re.compile(r"(unix|dns|ipv4|ipv6|xds|http):")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def database_place(text: str) -> Path | str:
    """A database's file, or its URL."""
    return text if "://" in text else Path(text)


def expect_address(option: str, text: str | None) -> None:
    """HOST:PORT, alone or after https://. Other schemes of gRPC's are left to gRPC."""
    place = "" if text is None else text.removeprefix("https://")
    if text is None or _SCHEME.match(place):
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{option}: expected HOST:PORT, for example 127.0.0.1:50051, got {text!r}")


def moment(option: str, text: str) -> datetime:
    """A time in ISO 8601; it is in UTC if it names no offset."""
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the year 1 in a time zone further east is no year in UTC
        expected = "expected a time like 2026-01-02 or 2026-01-02T03:04:05Z"
        raise UsageError(f"{option}: {expected}, got {text!r}") from None


def age(option: str, text: str) -> timedelta:
    """A number with its unit: 90s, 15m, 24h, 7d."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise UsageError(f"{option}: expected a number and s, m, h or d, for example 24h, got {text!r}")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option}: expected numbers with commas between them, got {text!r}") from None
