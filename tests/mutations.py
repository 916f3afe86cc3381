"""Changes of signed files that a stranger may make: at any depth, in the layers that files are made of.

A layer is JSON, lines, words, base64 or CBOR inside of bytes or text. A change deep inside is written back through all
layers, so that it reaches the checks behind the reading of the format.
"""

import base64
import binascii
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar

import cbor2
import msgspec

_EDGES: tuple[Any, ...] = (0, 1, -1, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, 1e308, True, None, "", "0", [], {})
_LOOK_ALIKE = str.maketrans("aceopxyi0", "асеорхуі\uff10")  # Cyrillic, full width
_JUNK = ("\x00", "\u202e", "\ud800", "\u00a0", "\n", " ", "é", "\ufeff", '"', "\\")
_TRICKS: tuple[tuple[bytes, bytes], ...] = (
    (rb"\{(\"[^\"]+\":)", rb"{\1null,\1"),  # a member twice
    (rb":(\d+)([,}])", rb":NaN\2"),
    (rb":(\d+)([,}])", rb":-Infinity\2"),
    (rb":(\d+)([,}])", rb":\g<1>.0\2"),
    (rb":(\d+)([,}])", rb":\g<1>e0\2"),
    (rb":(\d+)([,}])", rb":0\1\2"),
    (rb":(\d+)([,}])", b":" + b"9" * 5000 + rb"\2"),
    (rb":(\"[^\"]*\")", rb": \1"),
    (rb":\"([a-z])", rb':"\\u0000\1'),
    (rb":(\d+)([,}])", b":" + b"[" * 5000 + b"]" * 5000 + rb"\2"),
    (rb":(\d+)([,}])", b":" + b'{"a":' * 5000 + b"1" + b"}" * 5000 + rb"\2"),
    (rb"\A", b"\xef\xbb\xbf"),
    (rb"\Z", b"\n"),
    (rb"\A[^\0]*\Z", b""),
)


def mutants(data: bytes, other: bytes, count: int, seed: int = 1) -> Iterator[bytes]:
    """`count` files that differ from `data`. `other` is a file of the same kind about something else: parts of it are
    put into this one's places.
    """
    random = Random(seed)
    made = 0
    while made < count:
        changed = _changed(data, other, random)
        if changed not in (data, other):
            made += 1
            yield changed


def _changed(value: Any, other: Any, random: Random) -> Any:
    """The same kind of value with one change. `other` is the value at its place in another file, or None."""
    if type(other) is not type(value):
        other = None
    if other is not None and other != value and random.random() < 0.06:
        return other
    match value:
        case bytes() | str():
            return _changed_text(value, other, random)
        case cbor2.CBORTag():
            inner = other.value if other is not None else None
            return cbor2.CBORTag(value.tag, _changed(value.value, inner, random))
        case dict() if value:
            return _changed_members(value, other or {}, random)
        case list() | tuple() if value:
            return _changed_items(list(value), list(other or ()), random)
        case bool():
            return random.choice((not value, None, int(value)))
        case int() | float():
            return random.choice((value + 1, value - 1, -value, *_EDGES))
    return random.choice(_EDGES)


def _changed_members(members: dict[Any, Any], other: dict[Any, Any], random: Random) -> dict[Any, Any]:
    name, (left, right) = random.choice(list(members)), (random.choice(list(members)) for _ in range(2))
    match random.choice(("inside",) * 12 + ("drop", "add", "rename", "swap")):
        case "inside":
            return members | {name: _changed(members[name], other.get(name), random)}
        case "drop":
            return {each: value for each, value in members.items() if each != name}
        case "add":
            return members | {"more" if isinstance(name, str) else 99: members[name]}
        case "rename":
            new = name.translate(_LOOK_ALIKE) if isinstance(name, str) else -name
            return {new if each == name else each: value for each, value in members.items()}
    return members | {left: members[right], right: members[left]}


def _changed_items(items: list[Any], other: list[Any], random: Random) -> list[Any]:
    place, second = random.randrange(len(items)), random.randrange(len(items))
    match random.choice(("inside",) * 8 + ("drop", "twice", "swap", "foreign")):
        case "inside":
            items[place] = _changed(items[place], other[place] if place < len(other) else None, random)
        case "drop":
            del items[place]
        case "twice":
            items.insert(second, items[place])
        case "swap":
            items[place], items[second] = items[second], items[place]
        case "foreign" if other:
            items.insert(place, random.choice(other))
    return items


def _changed_text(value: Any, other: Any, random: Random) -> Any:
    for read, write in _LAYERS if random.random() < 0.93 else ():
        inner = read(value)
        if inner is not None:
            written = write(_changed(inner, None if other is None else read(other), random))
            if written is not None:
                return written.decode("utf-8", "surrogateescape") if isinstance(value, str) else written
    return _changed_bytes(value, random) if isinstance(value, bytes) else _changed_letters(value, random)


def _changed_letters(text: str, random: Random) -> str:
    place = random.randrange(len(text) + 1)
    return random.choice(
        (
            "",
            text[:place],
            text + text,
            text.upper(),
            text.translate(_LOOK_ALIKE),
            text[:place] + random.choice(_JUNK) + text[place:],
            text[:place] + random.choice("0129afz=/.-") + text[place + 1 :],
        )
    )


def _changed_bytes(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data) + 1)
    pattern, replacement = random.choice(_TRICKS)
    found = list(re.finditer(pattern, data))
    if found and random.random() < 0.6:
        at = random.choice(found)
        return data[: at.start()] + at.expand(replacement) + data[at.end() :]
    flipped = bytes([data[place] ^ 1 << random.randrange(8)]) if place < len(data) else b"\xff"
    return random.choice((data[:place], data[:place] + data, data[:place] + flipped + data[place + 1 :]))


def _text(value: Any) -> str | None:
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError:
        return None


def _read_json(value: Any) -> Any:
    text = _text(value)
    if text is None or text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _write_json(value: Any) -> bytes:
    """In canonical form, but for text that has none."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=all(map(str, value)), separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _separated(by: str) -> tuple[Callable[[Any], Any], Callable[[Any], bytes | None]]:
    def read(value: Any) -> Any:
        text = _text(value)
        return text.split(by) if text and by in text.strip(by) else None

    def write(parts: Any) -> bytes | None:
        return by.join(map(str, parts)).encode("utf-8", "surrogatepass") if isinstance(parts, list) else None

    return read, write


def _read_base64(value: Any) -> Any:
    text = _text(value)
    if not text or len(text) < 16:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _read_cbor(value: Any) -> Any:
    if not isinstance(value, bytes) or value[:1] not in (b"\xd2", b"\xa1", b"\xa3", b"\xa4", b"\xa5", b"\x83"):
        return None
    try:
        read = cbor2.loads(value)
    except Exception:
        return None
    return read if cbor2.dumps(read, canonical=True) == value else None


def _write_cbor(value: Any) -> bytes | None:
    try:
        return cbor2.dumps(value, canonical=True)
    except (ValueError, TypeError):  # lone surrogates; names of members that cannot be sorted
        return None


_LAYERS: tuple[tuple[Callable[[Any], Any], Callable[[Any], bytes | None]], ...] = (
    (_read_json, _write_json),
    (_read_cbor, _write_cbor),
    _separated("\n"),
    (_read_base64, lambda value: base64.b64encode(value) if isinstance(value, bytes) else None),
    _separated(" "),
)


T = TypeVar("T")


def replace(value: T, **changes: Any) -> T:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changes)
    return dataclasses.replace(value, **changes)  # type: ignore[type-var]
