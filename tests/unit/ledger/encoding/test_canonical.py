import json
import struct

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from ledger.encoding.canonical import MAX_DEPTH, canonical, parse, parse_json
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
    ("data", "why"),
    [
        (b'{"a":1,"a":1}', "twice"),
        (b'{"a":{"b":1,"b":2}}', "twice"),
        (b"NaN", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"1e999", "canonical"),
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"\xef\xbb\xbf1", "not JSON"),
        (b'"\\ud800"', "canonical"),
        (b"[1 ,2]", "canonical form"),
        (b"1.0", "canonical form"),
        (b"-0", "canonical form"),
        (b'{"b":1,"a":2}', "canonical form"),
        (b'"\\u0041"', "canonical form"),
        (b"1" * 5000, "canonical"),
        (b"[" * 100_000, "deep"),
        (b"[" * 200 + b"]" * 200, "deeper"),
    ],
)
def test_bytes_that_are_not_the_one_form_of_a_value_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        parse(data)


def test_the_nesting_limit_is_exact_and_does_not_depend_on_the_stack() -> None:
    parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(FormatError, match="deeper"):
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
