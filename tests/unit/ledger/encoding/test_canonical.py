import json
import struct
from collections.abc import Mapping
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from msgspec import field

from ledger.encoding.canonical import MAX_DEPTH, canonical, parse, parse_json
from ledger.encoding.document import Count, Document, Hash, Number, Seed, read_plain
from ledger.errors import FormatError
from tests.examples import VECTORS

NUMBERS = json.loads((VECTORS / "rfc8785/numbers.json").read_bytes())
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")), lambda inner: st.lists(inner, max_size=4) |
    st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4), max_leaves=12,
)  # fmt: skip


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_are_written_as_in_appendix_b_of_rfc_8785(bits: str, text: str) -> None:
    number = struct.unpack(">d", bytes.fromhex(bits))[0]
    assert canonical(number) == text.encode()
    assert canonical(parse(text.encode())) == text.encode()


def test_members_are_sorted_by_utf_16_code_units() -> None:
    # RFC 8785 §3.2.3: U+10000 and up sort before U+E000 and up, because their surrogates do.
    assert canonical({"\ue000": 1, "\U00010000": 2, "a": 3}) == '{"a":3,"\U00010000":2,"\ue000":1}'.encode()


@given(JSON_VALUES)
def test_what_was_written_reads_back_and_is_written_the_same(value: object) -> None:
    data = canonical(value)
    assert canonical(parse(data)) == data


_ODD_TEXT = st.sampled_from(["\ue000", "\U00010000", "\ud800", "\x7f"])
_ASCII = st.text(st.characters(max_codepoint=0x7F), max_size=8)
_NUMBERS = st.integers() | st.floats() | st.integers(-99, 99).map(float) | st.floats(-5, 17).map(lambda x: 10.0**x)
PLAIN_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _ASCII | _ODD_TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_ASCII | _ODD_TEXT, inner, max_size=4) | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(PLAIN_VALUES)
def test_the_fast_way_writes_what_the_reference_writes(value: object) -> None:
    try:
        expected = rfc8785.dumps(value)  # type: ignore[arg-type]
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        with pytest.raises(FormatError):
            canonical(value)
    else:
        assert canonical(value) == expected


@pytest.mark.parametrize(
    "data",
    [
        *(b'{"a":1,"a":1}', b'{"a":{"b":1,"b":2}}', b"NaN", b"[Infinity]", b"1e999", b"", b"\xff", b"\xef\xbb\xbf1"),
        *(b'"\\ud800"', b"[1 ,2]", b"1.0", b"-0", b'{"b":1,"a":2}', b'"\\u0041"', b"1" * 5000),
        *(b"[" * 100_000, b"[" * 200 + b"]" * 200),
    ],
)
def test_bytes_that_are_not_the_one_form_of_a_value_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse(data)


def test_the_nesting_limit_is_exact_and_does_not_depend_on_the_stack() -> None:
    parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(FormatError):
        parse_json(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 2**53, "\ud800", {1: 2}, {"\ud800": 1}, b"bytes", object()]
)
def test_values_without_a_canonical_form_are_refused(value: object) -> None:
    with pytest.raises(FormatError):
        canonical(value)


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:0123456789eE.-+ntfu\\ ', max_size=60).map(str.encode))
def test_whatever_parses_is_canonical_and_whatever_does_not_raises_one_error(data: bytes) -> None:
    try:
        value = parse(data)
    except FormatError:
        return
    assert canonical(value) == rfc8785.dumps(value) == data


@given(JSON_VALUES | PLAIN_VALUES, st.booleans())
def test_what_python_writes_is_taken_exactly_where_it_is_what_the_reference_writes(value: object, ascii: bool) -> None:
    try:
        data = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=ascii).encode()
        expected = rfc8785.dumps(json.loads(data))
    except (UnicodeEncodeError, rfc8785.CanonicalizationError):
        return
    try:
        assert rfc8785.dumps(parse(data)) == data
    except FormatError:
        assert data != expected


class Sample(Document, tag="kolm.sample.v1", frozen=True):
    number: float
    count: int = 0
    text: str = ""
    hash: Hash = bytes(32)
    rates: Mapping[str, float] = field(default_factory=dict)
    bounded: tuple[Number, ...] = ()
    anything: Any = None


class Ranged(Document, tag="kolm.sample.v1", frozen=True):
    """A document as ours are: no integer without a range, and nothing of any type."""

    number: Number
    count: Count = 0
    text: str = ""
    hash: Hash = bytes(32)
    rates: Mapping[str, Number] = field(default_factory=dict)
    bounded: tuple[Number, ...] = ()
    seed: Seed = Seed(0)
    flag: bool | None = None


_TEXTS = st.text(st.characters(max_codepoint=0x7F), max_size=6) | st.sampled_from(
    ["é", '":1.0,"', ":-0,", "1e5", "\\u0041", "9" * 17, ":" + "1" * 16 + ",", "{" * 40]
)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-6, 18).map(lambda x: 10.0**x)
_JSON_NUMBERS = _FLOATS | st.integers(-(2**54), 2**54) | st.integers(-9, 9).map(float) | st.just(-0.0)
_DOCUMENTS = st.fixed_dictionaries(
    {"type": st.just("kolm.sample.v1"), "number": _JSON_NUMBERS},
    optional={
        "count": st.integers(-(2**54), 2**54) | _FLOATS,
        "text": _TEXTS,
        "hash": st.just("AQ" + 41 * "A" + "=") | st.just("AQ" + 41 * "A"),
        "rates": st.dictionaries(_TEXTS, _JSON_NUMBERS, max_size=3),
        "bounded": st.lists(_JSON_NUMBERS, max_size=3),
        "seed": st.integers(0, 2**54) | st.just("18446744073709551615") | _TEXTS,
        "flag": st.booleans(),
        "anything": st.recursive(
            _TEXTS | _JSON_NUMBERS, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner)
        ),
        "unknown": st.none(),
    },
)


def as_rfc_8785(value: object) -> bytes:
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except rfc8785.CanonicalizationError:
        return b"none"


def in_python(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def strictly(data: bytes, kind: type[Document]) -> Document:
    """By the slow way alone: any layout is parsed, written by the reference, and compared."""
    document = parse_json(data)
    if as_rfc_8785(document) != data:
        raise FormatError("document", "is not canonical")
    return kind.from_document(document)


_KINDS = st.sampled_from([Sample, Ranged])


@given(_DOCUMENTS, st.sampled_from([as_rfc_8785, in_python, canonical]), _KINDS)
def test_the_fast_way_reads_what_the_strict_one_reads_and_refuses_what_it_refuses(
    document: Any, write: Any, kind: type[Document]
) -> None:
    known = {"type", *kind.__struct_fields__}
    try:
        data = write({name: value for name, value in document.items() if name in known or name == "unknown"})
    except FormatError:
        return
    try:
        expected = strictly(data, kind)
    except FormatError:
        with pytest.raises(FormatError):
            kind.from_bytes(data)
    else:
        read = kind.from_bytes(data)
        assert read == expected
        assert read.to_bytes() == data


@given(
    st.builds(
        Sample,
        number=_FLOATS | st.integers(-9, 9).map(float) | st.just(-0.0),
        text=_TEXTS | st.sampled_from(["1.0,", '"a":2.0}', "x.0]"]),
        rates=st.dictionaries(_TEXTS, _FLOATS | st.just(1.0), max_size=3),
        anything=st.lists(_TEXTS | _FLOATS | st.integers(-9, 9).map(float), max_size=3),
    )
)
def test_what_is_written_is_what_rfc_8785_writes(sample: Sample) -> None:
    assert sample.to_bytes() == rfc8785.dumps(sample.to_document())


@pytest.mark.parametrize(
    "number",
    ["0", "-1", "0.5", "0.00001", "123456789012345", "1e+21", "1000000000000000000000"[:-1], "3.3684210526315788"],
)
@pytest.mark.parametrize("kind", [Sample, Ranged])
def test_numbers_as_rfc_8785_has_them_are_read(number: str, kind: type[Sample | Ranged]) -> None:
    assert kind.from_bytes(b'{"number":%b,"type":"kolm.sample.v1"}' % number.encode()).number == float(number)


@pytest.mark.parametrize(
    "number",
    ["-0", "-0.0", "1.0", "-10.0", "1e5", "1E-7", "1e-6", "-1e16", "0.50", "1e-05", "0.000001e0", "10e15", "+1", "01"],
)
@pytest.mark.parametrize("place", ['"number":%s', '"bounded":[%s],"number":1', '"bounded":[2,%s],"number":1'])
@pytest.mark.parametrize("kind", [Sample, Ranged])
def test_other_spellings_of_numbers_are_refused(number: str, place: str, kind: type[Document]) -> None:
    with pytest.raises(FormatError):
        kind.from_bytes(b'{%b,"type":"kolm.sample.v1"}' % (place % number).encode())


@pytest.mark.parametrize("number", ["0.5", "-0.5", "-10", "1", "128"])
def test_documents_with_ordinary_numbers_are_read_the_fast_way(number: str) -> None:
    beside = '"bounded":[%s],"count":7,"flag":true,"number":%s,"rates":{"e":%s},"text":"a:1e5"' % ((number,) * 3)
    data = b'{%b,"type":"kolm.sample.v1"}' % beside.encode()
    assert read_plain(Ranged, data) is not None


@pytest.mark.parametrize("number", ["1e-7", "1e+21", "-0.0"])
def test_documents_with_odd_numbers_are_read_the_slow_way(number: str) -> None:
    assert read_plain(Ranged, b'{"number":%b,"type":"kolm.sample.v1"}' % number.encode()) is None


@pytest.mark.parametrize("character", [chr(code) for code in range(0x80)])
def test_every_character_has_one_spelling(character: str) -> None:
    data = rfc8785.dumps({"number": 1, "text": character + "x", "type": "kolm.sample.v1"})
    assert Sample.from_bytes(data).text == character + "x"
    if f'"{character}x"'.encode() in data:  # written as itself
        escaped = data.replace(f'"{character}x"'.encode(), f'"\\u{ord(character):04x}x"'.encode())
        with pytest.raises(FormatError):
            Sample.from_bytes(escaped)
