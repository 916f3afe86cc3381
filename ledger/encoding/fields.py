"""Strict reading of a parsed JSON object, member by member, with the path of the culprit in every error."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from ledger.encoding.cid import parse_cid
from ledger.encoding.digest import parse_digest
from ledger.encoding.receipt_id import parse_receipt_id
from ledger.encoding.timestamp import parse_timestamp
from ledger.errors import FormatError

T = TypeVar("T")

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")

MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 8785 §3.2.2.3)."""


class Fields:
    """The members of one object of a document. Every `read` takes one member; `close` refuses the members
    that were not taken.

    All methods raise FormatError, its field the dotted path from the document's root.
    """

    __slots__ = ("_members", "_path", "_unread")

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise FormatError(path or "document", "expected a JSON object")
        self._members = value
        self._path = path
        self._unread = set(value)

    def path(self, name: str) -> str:
        """The dotted path of a member, for errors."""
        return f"{self._path}.{name}" if self._path else name

    def read(self, name: str) -> Any:
        """The member's value, whatever it is."""
        try:
            value = self._members[name]
        except KeyError:
            raise FormatError(self.path(name), "is missing") from None
        self._unread.discard(name)
        return value

    def has(self, name: str) -> bool:
        return name in self._members

    def close(self) -> None:
        """All members have been read. A member that no reader knows would be signed but never looked at: refused."""
        if self._unread:
            raise FormatError(self.path(min(self._unread)), "is not a member of this document")

    def constant(self, name: str, expected: str) -> None:
        if self.read(name) != expected:
            raise FormatError(self.path(name), f"expected {expected!r}")

    def text(self, name: str, *, longest: int = 256, empty: bool = False) -> str:
        value = self.read(name)
        if not isinstance(value, str) or len(value) > longest or not (value or empty):
            raise FormatError(self.path(name), f"expected {'up' if empty else '1'} to {longest} characters of text")
        return value

    def name(self, name: str) -> str:
        """A name such as a method's; a reader need not know it beforehand."""
        value = self.read(name)
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise FormatError(self.path(name), "expected 1 to 32 of a-z, 0-9, - and _, a letter first")
        return value

    def names(self) -> list[str]:
        """The names of all members, sorted."""
        for member in self._members:
            if not _NAME.fullmatch(member):
                raise FormatError(self.path(member), "is not a name")
        return sorted(self._members)

    def choice(self, name: str, known: Collection[str]) -> str:
        value = self.read(name)
        if not isinstance(value, str) or value not in known:
            raise FormatError(self.path(name), f"expected one of {', '.join(sorted(known))}")
        return value

    def boolean(self, name: str) -> bool:
        value = self.read(name)
        if not isinstance(value, bool):
            raise FormatError(self.path(name), "expected true or false")
        return value

    def integer(self, name: str, lowest: int = 0, highest: int = MAX_INTEGER) -> int:
        value = self.read(name)
        # Asked first, here and in `number`: a path is put together for a culprit only, and a receipt has 30 numbers.
        if type(value) is int and lowest <= value <= highest:
            return value
        return checked_integer(value, self.path(name), lowest, highest)

    def number(self, name: str, lowest: float = -math.inf, highest: float = math.inf) -> float:
        value = self.read(name)
        if type(value) in (float, int) and math.isfinite(value) and lowest <= value <= highest:
            return float(value)
        return checked_number(value, self.path(name), lowest, highest)

    def cid(self, name: str) -> str:
        value = self.read(name)
        parse_cid(value, self.path(name))
        return str(value)

    def digest(self, name: str) -> str:
        value = self.read(name)
        parse_digest(value, self.path(name))
        return str(value)

    def time(self, name: str) -> str:
        value = self.read(name)
        parse_timestamp(value, self.path(name))
        return str(value)

    def receipt_id(self, name: str) -> str:
        return parse_receipt_id(self.read(name), self.path(name))

    def part(self, name: str) -> Fields:
        """A nested object."""
        return Fields(self.read(name), self.path(name))

    def array(self, name: str) -> list[Any]:
        value = self.read(name)
        if not isinstance(value, list):
            raise FormatError(self.path(name), "expected an array")
        return value

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """None where the member is null (it must still be there), else what `read` makes of it."""
        if self.read(name) is None:
            return None
        return read(name)


def checked_integer(value: object, path: str, lowest: int = 0, highest: int = MAX_INTEGER) -> int:
    """`value` if it is an integer (not a boolean) in the range. Raises FormatError."""
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise FormatError(path, f"expected an integer from {lowest} to {highest}")
    return value


def checked_number(value: object, path: str, lowest: float = -math.inf, highest: float = math.inf) -> float:
    """`value` as a finite float in the range (canonical JSON writes 1.0 as 1, so integers pass). Raises FormatError."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise FormatError(path, "expected a finite number")
    if not lowest <= value <= highest:
        raise FormatError(path, f"expected a number from {lowest:g} to {highest:g}")
    return float(value)
