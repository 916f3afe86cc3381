"""The text forms of values in documents, each with one spelling: bytes, digests, identifiers, receipt ids, times.

base64       RFC 4648 §4, padded, canonical
digest       sha256:<64 lowercase hex digits>, never truncated
cid          cidv1:sha256:<64 lowercase hex digits>, the SHA-256 of the named bytes
receipt id   UUID version 7 (RFC 9562 §5.7), 48 bits of milliseconds and 74 random bits; they sort by time
time         RFC 3339, UTC, exactly YYYY-MM-DDThh:mm:ss.mmmZ, so that text order is time order
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from datetime import UTC, datetime, timedelta

from ledger.encoding.canonical import canonical
from ledger.errors import FormatError

DIGEST = "sha256:[0-9a-f]{64}"
CID = "cidv1:sha256:[0-9a-f]{64}"
RECEIPT_ID = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{3}Z"
"""Patterns of the whole text."""

_TIME = re.compile(TIME)

_LAST_MILLISECOND = 253_402_300_799_999  # of the year 9999; an id has room for 891 years more


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode_base64(text: object, field: str) -> bytes:
    """The bytes of standard, padded base64. Raises FormatError, also for a second spelling of the same bytes."""
    if not isinstance(text, str):
        raise FormatError(field, "expected base64 text")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(field, f"is not base64: {error}") from None
    if encode_base64(data) != text:
        raise FormatError(field, "is not base64 in canonical form (RFC 4648 §3.5)")
    return data


def digest(data: bytes) -> str:
    """SHA-256 of `data` in text form."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_text(raw: bytes) -> str:
    """A SHA-256 hash in text form, the reverse of `parse_digest`. Raises FormatError for other than 32 bytes."""
    if len(raw) != 32:
        raise FormatError("digest", f"expected 32 bytes, got {len(raw)}")
    return "sha256:" + raw.hex()


def parse_digest(text: object, field: str = "digest") -> bytes:
    """The 32 bytes of a digest in text form. Raises FormatError for anything else."""
    if not isinstance(text, str) or re.fullmatch(DIGEST, text) is None:
        raise FormatError(field, "expected sha256:<64 lowercase hex digits>")
    return bytes.fromhex(text.removeprefix("sha256:"))


def cid(data: bytes) -> str:
    """The identifier of `data`."""
    return "cidv1:sha256:" + hashlib.sha256(data).hexdigest()


def cid_of_json(value: object) -> str:
    """The identifier of a JSON value, made from its canonical bytes (RFC 8785). Raises FormatError if it has none."""
    return cid(canonical(value))


def parse_cid(text: object, field: str = "cid") -> bytes:
    """The 32 digest bytes that an identifier names. Raises FormatError for anything else."""
    if not isinstance(text, str) or re.fullmatch(CID, text) is None:
        raise FormatError(field, "expected cidv1:sha256:<64 lowercase hex digits>")
    return bytes.fromhex(text.removeprefix("cidv1:sha256:"))


def new_receipt_id(time: datetime, randomness: bytes | None = None) -> str:
    """A fresh id for a receipt issued at `time`. `randomness` (10 bytes) is the operating system's unless given."""
    milliseconds = int(time.timestamp() * 1000) & (2**48 - 1)
    drawn = int.from_bytes(secrets.token_bytes(10) if randomness is None else randomness, "big")
    value = milliseconds << 80 | 0x7 << 76 | (drawn >> 62 & 0xFFF) << 64 | 0b10 << 62 | drawn & (2**62 - 1)
    digits = f"{value:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def time_of(receipt_id: str) -> datetime:
    """The moment, in whole milliseconds, for which `new_receipt_id` made the id; at most the last millisecond of year
    9999.
    """
    milliseconds = min(int(receipt_id.replace("-", "")[:12], 16), _LAST_MILLISECOND)
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def timestamp(time: datetime) -> str:
    """A moment (timezone-aware) as document text, cut to whole milliseconds."""
    if time.tzinfo is None:
        raise FormatError("time", "expected a timezone-aware datetime")
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def timestamp_not_before(time: datetime) -> str:
    """The first document text that is not before a moment, for bounds on document times."""
    return timestamp(time + timedelta(microseconds=-time.microsecond % 1000))


def parse_timestamp(text: object, field: str = "time") -> datetime:
    """The moment that document text names. Raises FormatError for anything else."""
    if not isinstance(text, str) or _TIME.fullmatch(text) is None:
        raise FormatError(field, "expected an RFC 3339 UTC time YYYY-MM-DDThh:mm:ss.mmmZ")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise FormatError(field, f"is not a time: {error}") from None


def moved(text: str, seconds: float) -> str:
    """The time `seconds` later, or earlier if negative; unchanged if the result is beyond year 9999."""
    try:
        return timestamp(parse_timestamp(text) + timedelta(seconds=seconds))
    except OverflowError:
        return text
