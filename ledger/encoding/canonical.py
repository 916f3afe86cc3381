"""Canonical JSON (RFC 8785): each value has one byte string, so that hashed and signed values are never ambiguous."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, NoReturn

import rfc8785

from ledger.errors import FormatError

MAX_DEPTH = 32
"""Nesting that `parse` accepts. Our deepest document nests 4 levels; the interpreter's stack, on which `json` recurses,
holds about 1,000, less what the caller uses. A fixed bound keeps the answer to given bytes the same.
"""

_MAX_SAFE_INTEGER = 2**53 - 1

_write_plain = json.JSONEncoder(ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")).encode

_ODD_NUMBER = re.compile(rb'[:\[,](?<![^"]:)-?[0-9]+(?:(?<=[0-9]{16})|[eE]|\.(?:[0-9]*[eE]|0[\],}]))')
"""A number that Python and ECMAScript may print differently: 16 digits or more, an exponent, a whole one with ".0".

It is an item of an array or the value of a member. It also matches inside text, which takes the slow way and changes
nothing.
"""

_ENDS_ODDLY = (b".0,", b".0}", b".0]")
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_IS_ODD = (b"0e", *(before + 16 * b"0" for before in (b":", b",", b"[", b"-")))
"""Prefixes of such numbers after `_ALIKE`, which makes all digits zeros and every E small."""


def canonical(value: object) -> bytes:
    """The canonical bytes of a JSON value: None, bool, int within ±(2^53 − 1), finite float, str, list, tuple, dict.
    Raises FormatError for values that RFC 8785 has no bytes for (NaN, infinities, lone surrogates, other types).
    """
    with suppress(_NotPlainError):
        return _write_plain(_plain(value, MAX_DEPTH)).encode("ascii")
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except (ValueError, RecursionError) as error:  # CanonicalizationError and UnicodeEncodeError are ValueErrors
        raise FormatError("document", f"has no canonical JSON form: {error}") from None


def parse(data: bytes, field: str = "document") -> Any:
    """The value of canonical JSON bytes. `canonical(parse(data)) == data` for every accepted `data`.

    Raises FormatError for duplicate keys, NaN, nesting beyond MAX_DEPTH, bytes that are not JSON and JSON
    that is not canonical.
    """
    try:
        return _parse_plain(data)
    except (_NotPlainError, ValueError, RecursionError):  # an odd number, text beyond ASCII, or a fault
        value = parse_json(data, field)
    if canonical(value) != data:
        raise FormatError(field, "is JSON, but not in canonical form (RFC 8785)")
    return value


def parse_json(data: bytes, field: str = "document") -> Any:
    """The value of strict JSON (UTF-8, no duplicate keys, no NaN, bounded depth) in any layout. Raises FormatError."""
    try:
        value = _read(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(field, f"is not JSON: {_reason(error)}") from None
    if _may_nest_deeply(data) and _depth_exceeds(value, MAX_DEPTH):
        raise FormatError(field, f"is not JSON: nests deeper than {MAX_DEPTH} levels")
    return value


class _NotPlainError(Exception):
    """The fast way cannot decide for these bytes."""


def _parse_plain(data: bytes) -> Any:
    """The value of canonical bytes, in two calls into C: the standard library reads it and writes the same bytes. Such
    bytes are canonical if all text is ASCII (see `_plain`) and Python and ECMAScript print every number alike. A member
    named twice is read once, and so is written otherwise.
    """
    if data[:1] not in (b"{", b"[") or not is_plain(data):
        raise _NotPlainError
    text = data.decode("ascii")
    value = _read_plain(text)
    if _write_plain(value) != text:
        raise _NotPlainError
    return value


def is_plain(data: bytes) -> bool:
    """Whether JSON bytes are canonical if a writer that sorts members, adds no space and prints the shortest digits of
    a number without an exponent writes the same bytes: ASCII, and no number that such writers print differently.
    """
    if not data.isascii():
        return False
    if b"\\" in data:
        return not _may_nest_deeply(data) and _ODD_NUMBER.search(data) is None
    # No character is escaped, so all between two quotation marks is text, and the rest is searched much faster.
    outside = b"".join(data.split(b'"')[::2])
    return not (
        _may_nest_deeply(outside)
        or any(map(outside.__contains__, _ENDS_ODDLY))
        or any(map(outside.translate(_ALIKE).__contains__, _IS_ODD))
    )


def _may_nest_deeply(data: bytes) -> bool:
    """Whether the nesting is too deep; False without a search if there are not enough brackets."""
    return data.count(b"{") + data.count(b"[") > MAX_DEPTH


def _reason(error: Exception) -> str:
    return f"nests deeper than {MAX_DEPTH} levels" if isinstance(error, RecursionError) else str(error)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object names a member twice")
    return members


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _integer(digits: str) -> int | float:
    # RFC 8785 §3.2.2.3 writes doubles up to 1e21 without an exponent, so long digit strings are doubles, not integers.
    if len(digits) <= 17 and abs(value := int(digits)) <= _MAX_SAFE_INTEGER:
        return value
    return float(digits)


def _plain(value: Any, depth: int) -> Any:
    """The value in a form that the standard library's encoder, several times faster, writes as RFC 8785 asks.

    It does so for ASCII text (the same escapes; sorted by code point, which differs from UTF-16 only beyond U+FFFF) and
    for numbers that Python and ECMAScript print alike: the shortest digits, without an exponent. ECMAScript prints a
    whole double as an integer, and -0 as 0. Raises _NotPlainError for other values.
    """
    kind = type(value)
    if kind is str:
        if value.isascii():
            return value
    elif kind is dict:
        if depth and all(type(name) is str and name.isascii() for name in value):
            return {name: _plain(member, depth - 1) for name, member in value.items()}
    elif kind is int:
        if -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER:
            return value
    elif kind is float:
        if value.is_integer():  # neither NaN nor an infinity is
            return _plain(int(value), depth)
        if 1e-4 <= abs(value) < 1e15:
            return value
    elif kind is list or kind is tuple:
        if depth:
            return [_plain(member, depth - 1) for member in value]
    elif value is None or kind is bool:
        return value
    raise _NotPlainError


def _depth_exceeds(value: object, limit: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if limit == 0:
        return True
    members = value.values() if isinstance(value, dict) else value
    return any(_depth_exceeds(member, limit - 1) for member in members)


_read = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer).decode
_read_plain = json.JSONDecoder(parse_constant=_constant).decode
