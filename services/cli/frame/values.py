"""Words of the command line as values, and the files and folders that it names. All functions raise UsageError."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from services.cli.frame.exits import UsageError
from services.generation.target.model_path import ADAPTER_FOLDER, FolderKind
from services.runtime.usage import checked_name

Number = TypeVar("Number", int, float)

_AGE = re.compile(r"(\d{1,6})([smhd])")
_LONGEST = timedelta(days=36500)  # a time that is this far from now is a datetime, and can be slept
_SCHEME = re.compile(r"(unix|dns|ipv4|ipv6|xds|http):")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def database_place(text: str) -> Path | str:
    """A database's file, or its URL."""
    return text if "://" in text else Path(text)


def expect_name(option: str, name: str) -> str:
    """`name`, if it can be shown and logged."""
    try:
        return checked_name(name)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def expect_address(option: str, text: str | None) -> None:
    """Check HOST:PORT, alone or after https://; None passes. Names with other schemes are left to gRPC."""
    place = "" if text is None else text.removeprefix("https://")
    if text is None or _SCHEME.match(place):
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise UsageError(f"{option}: expected HOST:PORT, for example 127.0.0.1:50051, got {text!r}")


def expect_utf8(option: str, path: Path) -> None:
    """Raises UsageError for a path with bytes that are not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{option}: is {str(path)!a}; expected a path in UTF-8") from None


def moment(option: str, text: str) -> datetime:
    """A time in ISO 8601; it is in UTC if it names no offset."""
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the year 1 in a time zone further east has no year in UTC
        expected = "expected a time like 2026-01-02 or 2026-01-02T03:04:05Z"
        raise UsageError(f"{option}: {expected}, got {text!r}") from None


def age(option: str, text: str) -> timedelta:
    """A number with its unit: 90s, 15m, 24h, 7d; at most a hundred years."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise UsageError(f"{option}: expected a number and s, m, h or d, for example 24h, got {text!r}")
    found = timedelta(**{_UNITS[match[2]]: int(match[1])})
    if found > _LONGEST:
        raise UsageError(f"{option}: expected at most {_LONGEST.days}d, got {text!r}")
    return found


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option}: expected numbers with commas between them, got {text!r}") from None


def expect_files(flag: str, paths: Iterable[Path], expected: str) -> None:
    """Check that each path is a file."""
    if missing := [str(path) for path in paths if not path.is_file()]:
        raise UsageError(f"{flag}: {', '.join(missing)}: no such file; expected {expected}")


def read_bytes(flag: str, path: Path, most: int = -1) -> bytes:
    """The bytes of a file, at most `most` if that is given."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise UsageError(f"{flag}: cannot read {path}: {error.strerror}") from None


def read_text(flag: str, path: Path) -> str:
    """The text of a file in UTF-8."""
    try:
        return read_bytes(flag, path).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag}: {path} is not UTF-8: byte {error.start}") from None


def expect_folder(flag: str, path: Path, kind: FolderKind) -> None:
    """Check that `path` is a folder of this kind."""
    try:
        kind.check(path)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def named_adapters(settings: Iterable[str]) -> dict[str, Path]:
    """Folders by name, from settings of the form NAME=DIR."""
    found: dict[str, Path] = {}
    for setting in settings:
        name, _, folder = setting.partition("=")
        if not (name and folder):
            raise UsageError(f"--adapter: expected NAME=DIR of an adapter in peft's layout, got {setting}")
        expect_folder("--adapter", Path(folder), ADAPTER_FOLDER)
        if expect_name("--adapter", name) in found:
            raise UsageError(f"--adapter: {name} names two folders, {found[name]} and {folder}")
        found[name] = Path(folder)
    return found


def expect_writable(flag: str, folder: Path) -> None:
    """Make the folder if it is missing, and check that files can be made in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        hint = "name another folder, or let its owner make it yours"
        raise UsageError(f"{flag}: cannot write in {folder}: {error.strerror}", hint) from None


def expect_parent(flag: str, path: Path) -> None:
    """Check that the folder of a file exists, before a request, whose answer would be lost without it."""
    if not path.parent.is_dir():
        raise UsageError(f"{flag}: {path.parent} is not a directory", "make it first, or name a file in another folder")


def expect_new_file(flag: str, path: Path) -> None:
    """Check that nothing is at this path, and that its folder exists."""
    if path.exists():
        raise UsageError(f"{flag}: {path} exists already; name another file")
    expect_parent(flag, path)


def expect_new(flag: str, path: Path, hint: str = "name another folder, or remove it") -> None:
    """Check that nothing, or an empty folder, is at this path; not the folder of the process, which a rename cannot
    replace.
    """
    if not path.name:
        raise UsageError(f"{flag}: expected a new folder, got {path}", "name it from the folder above")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{flag}: {path} exists already", hint)
