"""Receipt ids: UUID version 7 (RFC 9562 §5.7), 48 bits of milliseconds and 74 random bits; they sort by time."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime, timedelta

from ledger.errors import FormatError

_FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def new_receipt_id(time: datetime, randomness: bytes | None = None) -> str:
    """A fresh id for a receipt issued at `time`. `randomness` (10 bytes) is the operating system's unless given."""
    milliseconds = int(time.timestamp() * 1000) & (2**48 - 1)
    drawn = int.from_bytes(secrets.token_bytes(10) if randomness is None else randomness, "big")
    value = milliseconds << 80 | 0x7 << 76 | (drawn >> 62 & 0xFFF) << 64 | 0b10 << 62 | drawn & (2**62 - 1)
    digits = f"{value:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def time_of(receipt_id: str) -> datetime:
    """The moment, in whole milliseconds, for which `new_receipt_id` made the id."""
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(receipt_id.replace("-", "")[:12], 16))


def parse_receipt_id(text: object, field: str = "receipt_id") -> str:
    """`text` if it is a UUID version 7 in lowercase hyphenated form. Raises FormatError for anything else."""
    if not isinstance(text, str) or _FORM.fullmatch(text) is None:
        raise FormatError(field, "expected a lowercase hyphenated UUID version 7")
    return text
