"""A 64-bit sampling seed inside canonical JSON: a number where every JSON reader keeps it exactly, else
decimal text. RFC 8785 Appendix D: integers beyond 2^53 − 1 travel as strings. Each seed has exactly one form,
so documents stay canonical.
"""

from __future__ import annotations

import re

from ledger.encoding.fields import MAX_INTEGER, checked_integer
from ledger.errors import FormatError

MAX_SEED = 2**64 - 1
_DIGITS = re.compile(r"[1-9][0-9]{15,19}")


def seed_to_json(seed: int) -> int | str:
    return seed if seed <= MAX_INTEGER else str(seed)


def seed_from_json(value: object, path: str) -> int:
    """The seed that a document's member holds. Raises FormatError for all else, a seed in the other form included."""
    if not isinstance(value, str):
        return checked_integer(value, path)
    if _DIGITS.fullmatch(value) is None or not MAX_INTEGER < int(value) <= MAX_SEED:
        raise FormatError(path, "expected an integer up to 2^53 - 1, or one up to 2^64 - 1 as decimal text")
    return int(value)
