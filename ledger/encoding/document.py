"""Documents as classes: members, ranges and defaults are declared once, and reading is strict.

A value and its document have the same content: after reading, the value is written again and compared. So a member that
is missing, repeated in another spelling, or null instead of absent is found and named.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import Meta

from ledger.encoding import text_forms
from ledger.encoding.canonical import canonical, is_plain, parse
from ledger.encoding.text_forms import parse_timestamp
from ledger.errors import FormatError

T = TypeVar("T")
_Read = TypeVar("_Read", bound="Part")

_resolving = threading.Lock()
"""Held while msgspec resolves the types of a class.

msgspec 0.22 shows other threads a class before all its types are resolved: `StructInfo_Convert` in its `_core.c` keeps
the class's list of types before it fills it, and the Python code that it calls meanwhile lets other threads run. A
thread that reads such a class follows null pointers.
"""

MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly (RFC 8785 §3.2.2.3)."""
MAX_TOKEN_ID = 2**32 - 1
MAX_SEED = 2**64 - 1
_LARGEST = 1.7976931348623157e308  # of all finite numbers

Text = Annotated[str, Meta(min_length=1, max_length=256)]
Reason = Annotated[str, Meta(min_length=1, max_length=2048)]
Nonce = Annotated[str, Meta(min_length=1, max_length=128)]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
Number = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
NotNegative = Annotated[float, Meta(ge=0.0, le=_LARGEST)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""32 bytes; all bytes are base64 in a document."""

_PLACE = re.compile(r" - at `(?:key` in `)?\$\.?(.*)`\Z")
_MEMBER = re.compile(r"Object (?:missing required|contains unknown) field `(.*)`")
_FORM = re.compile(r"`str` matching regex .*\(\?#(.*)\)['\"]\Z", re.DOTALL)
_SEED = re.compile(r"[1-9][0-9]{15,19}")
_WHOLE_FLOAT = re.compile(rb"\.0(?<!-0\.0)(?=[,}\]])")  # canonical JSON writes -0.0 as 0; a literal first is found fast
_INTEGERS, _FLOATS, _ANY = range(3)
_PUNCTUATION = bytes.maketrans(b":[]{}", b",,,,,")
_REST = bytes(set(range(256)) - set(b'",:[]{}eul'))  # true and false keep a letter more than an exponent


def form(pattern: str, words: str) -> Meta:
    """The constraint of a member that is text of a form; `words` describe the form in errors."""
    return Meta(pattern=rf"\A(?:{pattern})\Z(?#{words})")


def one_of(words: Iterable[str]) -> Meta:
    """The constraint of a member that is one of some words."""
    return form("|".join(words), f"one of {', '.join(words)}")


Cid = Annotated[str, form(text_forms.CID, "cidv1:sha256:<64 lowercase hex digits>")]
Digest = Annotated[str, form(text_forms.DIGEST, "sha256:<64 lowercase hex digits>")]
ReceiptId = Annotated[str, form(text_forms.RECEIPT_ID, "a lowercase hyphenated UUID version 7")]
Time = Annotated[str, form(text_forms.TIME, "an RFC 3339 UTC time YYYY-MM-DDThh:mm:ss.mmmZ")]
Name = Annotated[str, form("[a-z][a-z0-9_-]{0,31}", "1 to 32 of a-z, 0-9, - and _, a letter first")]
"""A name such as a method's; a reader need not know it beforehand."""
FileName = Annotated[
    str, form("[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "a plain name: 1 to 128 of letters, digits, '.', '_' and '-'")
]
"""No slash, no leading dot, no character with a meaning to a file system, a shell or a terminal."""


class Seed(int):
    """A 64-bit sampling seed: a number in a document if every JSON reader keeps it exactly, else decimal text.

    RFC 8785 Appendix D: integers beyond 2^53 − 1 are strings. Each seed has exactly one form.
    """

    @classmethod
    def read(cls, value: object) -> Seed:
        """The seed of a document's member. Raises ValueError for any other value, also a seed in the other form."""
        if type(value) is int and 0 <= value <= MAX_INTEGER:
            return cls(value)
        if isinstance(value, str) and _SEED.fullmatch(value) and MAX_INTEGER < int(value) <= MAX_SEED:
            return cls(value)
        raise ValueError("expected an integer up to 2^53 - 1, or one up to 2^64 - 1 as decimal text")

    def written(self) -> int | str:
        return int(self) if self <= MAX_INTEGER else str(int(self))


def written(default: T) -> T:
    """The default of a member that is always in the document; a member with a plain default is left out if it has that
    value.
    """
    return msgspec.field(default_factory=lambda: default)


class Members(msgspec.Struct, frozen=True, gc=False):
    """Members of an object that may have other members, such as a configuration of another program."""

    @classmethod
    def from_document(cls, document: object, path: str = "") -> Self:
        """The members of a parsed JSON object. Raises FormatError naming the first wrong field, after `path`."""
        decoder(cls)  # its types are resolved from here on
        try:
            return msgspec.convert(document, cls, dec_hook=_read_value)
        except msgspec.ValidationError as error:
            raise _of_reader(str(error), path) from None


class Part(Members, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An object in a document. It is not checked when it is made, but when it is read, and so before it is signed."""

    PLACE: ClassVar[str] = ""
    """The file of such an object, in errors."""

    def to_document(self) -> dict[str, Any]:
        """The JSON value. Raises FormatError for text that is not Unicode."""
        try:
            document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self, enc_hook=_write_value))
            return document
        except UnicodeEncodeError:
            raise FormatError("document", "expected text in UTF-8, got a lone surrogate") from None

    def to_bytes(self) -> bytes:
        """The canonical bytes (RFC 8785). Raises FormatError if the value has no canonical form."""
        written = _write_plain(self)
        return canonical(self.to_document()) if written is None else written

    @classmethod
    def from_document(cls, document: object, path: str = "") -> Self:
        """The value of a parsed JSON object. Raises FormatError naming the first wrong field, after `path`."""
        value = super().from_document(document, path)
        try:
            if (again := value.to_document()) != document:
                raise _difference(again, document)
            value.check_all()
        except FormatError as error:
            raise FormatError(_joined(path, error.field), error.problem) from None
        return value

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The value of canonical bytes. Raises FormatError naming the first wrong field."""
        value = read_plain(cls, data)
        if value is None:
            return cls.from_document(parse(data, cls.PLACE or "document"), cls.PLACE)
        try:
            value.check_all()
        except FormatError as error:
            raise FormatError(_joined(cls.PLACE, error.field), error.problem) from None
        return value

    def check_all(self) -> None:
        """Run `check`, and check that the times are in the calendar: their pattern allows a 30th of February."""
        for name in _times(type(self)):
            parse_timestamp(getattr(self, name), name)
        self.check()

    def check(self) -> None:
        """Raises FormatError if valid members do not fit together."""


class Document(Part, frozen=True, tag_field="type"):
    """A whole document; `tag` is its member `type`."""

    @classmethod
    def from_document(cls, document: object, path: str = "") -> Self:
        """A part of a document, whose type is checked first. Raises FormatError."""
        if isinstance(document, dict) and document.get("type") != cls.type_name():
            raise FormatError(_joined(path, "type"), f"expected {cls.type_name()!r}")
        return super().from_document(document, path)

    @classmethod
    def type_name(cls) -> str:
        return str(cls.__struct_config__.tag)


def _read_value(kind: type, value: object) -> Any:
    # A class of values that are text or numbers in documents reads and writes them itself.
    try:
        return kind.read(value)  # type: ignore[attr-defined]
    except FormatError as error:
        raise ValueError(error.problem) from None


def _write_value(value: Any) -> Any:
    return value.written()


def packing(kind: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """A writer and a reader of values with documents, for messages between kolm's processes: MessagePack."""
    with _resolving:
        reader = msgspec.msgpack.Decoder(kind, dec_hook=_read_value)
    return msgspec.msgpack.Encoder(enc_hook=_write_value).encode, reader.decode


_encode_sorted = msgspec.json.Encoder(enc_hook=_write_value, order="sorted").encode


def _write_plain(value: Part) -> bytes | None:
    """The canonical bytes of a value, from one call into C; None if that may write other bytes: see `is_plain`."""
    try:
        data = _encode_sorted(value)
    except UnicodeEncodeError:
        return None
    if b"\\" in data:
        return None
    parts = data.split(b'"')  # no character is escaped: every other part is outside of text
    parts[::2] = [_WHOLE_FLOAT.sub(b"", part) for part in parts[::2]]
    data = b'"'.join(parts)
    return data if is_plain(data) else None


@cache
def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The reader of JSON for a class with documents among its members. Thread-safe."""
    with _resolving:
        return msgspec.json.Decoder(kind, dec_hook=_read_value)


def read_plain(kind: type[_Read], data: bytes) -> _Read | None:
    """The value of bytes that it writes again identically, in two calls into C; None for all others, right or wrong.
    Such bytes are canonical, and have exactly the value's content: see `is_plain`. Whole floats are written with ".0",
    which canonical JSON leaves out.
    """
    numbers = _numbers(kind)
    if not (is_plain(data) if numbers == _ANY else data.isascii()) or (numbers == _FLOATS and _has_odd_float(data)):
        return None
    try:
        value = decoder(kind).decode(data)
        again = _encode_sorted(value)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None
    return value if (again if numbers == _INTEGERS else _WHOLE_FLOAT.sub(b"", again)) == data else None


def _has_odd_float(data: bytes) -> bool:
    """Whether a number of canonical bytes, once read as a float, may be written identically and not as ECMAScript does:
    a number with an exponent, or -0.0. It also matches inside text, which then takes the slow way.
    """
    outside = data.translate(_PUNCTUATION, _REST)  # a number is between punctuation, without quotation marks
    return b",e," in outside or b"-0.0" in data


@cache
def _numbers(kind: type[Part]) -> int:
    """The numbers of a kind: integers of a range, which all writers print alike; also floats; or any, at any depth."""
    with _resolving:
        waiting: list[Any] = [msgspec.inspect.type_info(kind)]
    found = _INTEGERS
    while waiting:
        match waiting.pop():
            case msgspec.inspect.StructType(fields=fields):
                waiting += [member.type for member in fields]
            case msgspec.inspect.TupleType(item_types=types) | msgspec.inspect.UnionType(types=types):
                waiting += types
            case msgspec.inspect.VarTupleType(item_type=item):
                waiting.append(item)
            case msgspec.inspect.DictType(key_type=key, value_type=each):
                waiting += [key, each]
            case msgspec.inspect.IntType(ge=int(), le=int()) | msgspec.inspect.StrType() | msgspec.inspect.BytesType():
                pass
            case msgspec.inspect.NoneType() | msgspec.inspect.BoolType() | msgspec.inspect.CustomType():
                pass
            case msgspec.inspect.FloatType():
                found = _FLOATS
            case _:
                return _ANY
    return found


@cache
def _times(kind: type[Part]) -> tuple[str, ...]:
    """The members that are times."""
    return tuple(member.name for member in msgspec.structs.fields(kind) if member.type == Time)


def _of_reader(problem: str, path: str) -> FormatError:
    place = _PLACE.search(problem)
    found = place[1].replace("[...]", "") if place else ""  # names a member of a mapping
    problem = _FORM.sub(r"\1", _PLACE.sub("", problem)).replace("`object`", "a JSON object")
    if member := _MEMBER.fullmatch(problem):
        found = _joined(found, member[1])
        problem = "is missing" if "missing" in problem else "is not a member of this document"
    return FormatError(_joined(path, found) or "document", problem[:1].lower() + problem[1:])


def _difference(expected: Any, given: Any, path: str = "") -> FormatError:
    """The first member in which a document differs from the document of its value."""
    if isinstance(expected, dict) and isinstance(given, dict):
        for name in sorted({*expected, *given}):
            if name not in given:
                return FormatError(_joined(path, name), "is missing")
            if name not in expected:
                return FormatError(_joined(path, name), "is left out if it has its default")
            if expected[name] != given[name]:
                return _difference(expected[name], given[name], _joined(path, name))
    if isinstance(expected, list) and isinstance(given, list):
        for place, (one, other) in enumerate(zip(expected, given, strict=False)):
            if one != other:
                return _difference(one, other, f"{path}[{place}]")
    return FormatError(path or "document", "is not in its canonical form")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name and name != "document" else path or name
