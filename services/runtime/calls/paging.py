"""AIP-158 paging: opaque tokens bound to the list and the filter they came from.

A token holds a position and a digest over kind, filter and position. It is no secret and grants nothing: the filter
applies again on every page. The digest turns a token from another list, another filter or a typing error into
INVALID_ARGUMENT on `page_token` instead of a silently wrong page. Tokens survive a restart and work on any replica.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct

from services.runtime.errors import InvalidArgument

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

_DIGEST_BYTES = 18  # 27 bytes in all: whole groups of base64, so that no token has a second spelling
_LAYOUT = struct.Struct(f">BQ{_DIGEST_BYTES}s")
_VERSION = 1


def page_size(requested: int) -> int:
    """How many rows to return: 0 is the default, anything above the maximum is the maximum (AIP-158)."""
    return min(requested or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def page_token(kind: str, filters: bytes, position: int) -> str:
    """A token for the page that starts at `position` (0 to 2^64 - 1) of the list `kind` under `filters`."""
    packed = _LAYOUT.pack(_VERSION, position, _digest(kind, filters, position))
    return base64.urlsafe_b64encode(packed).decode("ascii")


def page_position(token: str, kind: str, filters: bytes) -> int:
    """Where the page of `token` starts; 0 for the empty token. Raises InvalidArgument on `page_token`."""
    if not token:
        return 0
    try:
        packed = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        version, position, digest = _LAYOUT.unpack(packed)
    except (UnicodeEncodeError, binascii.Error, struct.error):
        raise _bad_token() from None
    if version != _VERSION or digest != _digest(kind, filters, position):
        raise _bad_token()
    return int(position)


def _digest(kind: str, filters: bytes, position: int) -> bytes:
    parts = (b"kolm.page.v1", kind.encode(), filters, struct.pack(">Q", position))
    return hashlib.sha256(b"".join(struct.pack(">Q", len(part)) + part for part in parts)).digest()[:_DIGEST_BYTES]


def _bad_token() -> InvalidArgument:
    expected = "expected next_page_token of an earlier page of this list, with the same filter"
    return InvalidArgument("page_token", expected, reason="BAD_PAGE_TOKEN")
