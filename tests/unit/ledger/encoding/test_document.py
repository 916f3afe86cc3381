"""Documents are read by a fast way where that is possible; it takes what the strict way takes, and nothing else."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from msgspec import field

from ledger.encoding.canonical import canonical, parse_json
from ledger.encoding.document import Document, Hash, Number
from ledger.errors import FormatError


class Sample(Document, tag="kolm.sample.v1", frozen=True):
    number: float
    count: int = 0
    text: str = ""
    hash: Hash = bytes(32)
    rates: Mapping[str, float] = field(default_factory=dict)
    bounded: tuple[Number, ...] = ()
    anything: Any = None


_TEXTS = st.text(st.characters(max_codepoint=0x7F), max_size=6) | st.sampled_from(
    ["é", '":1.0,"', ":-0,", "1e5", "\\u0041", "9" * 17, ":" + "1" * 16 + ",", "{" * 40]
)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-6, 18).map(lambda x: 10.0**x)
_NUMBERS = _FLOATS | st.integers(-(2**54), 2**54) | st.integers(-9, 9).map(float) | st.just(-0.0)
_DOCUMENTS = st.fixed_dictionaries(
    {"type": st.just("kolm.sample.v1"), "number": _NUMBERS},
    optional={
        "count": st.integers(-(2**54), 2**54) | _FLOATS,
        "text": _TEXTS,
        "hash": st.just("AQ" + 41 * "A" + "=") | st.just("AQ" + 41 * "A"),
        "rates": st.dictionaries(_TEXTS, _NUMBERS, max_size=3),
        "bounded": st.lists(_NUMBERS, max_size=3),
        "anything": st.recursive(_TEXTS | _NUMBERS, lambda inner: st.lists(inner) | st.dictionaries(_TEXTS, inner)),
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


def strictly(data: bytes) -> Sample:
    """By the slow way alone: any layout is parsed, written by the reference, and compared."""
    document = parse_json(data)
    if as_rfc_8785(document) != data:
        raise FormatError("document", "is not canonical")
    return Sample.from_document(document)


@given(_DOCUMENTS, st.sampled_from([as_rfc_8785, in_python, canonical]))
def test_the_fast_way_reads_what_the_strict_one_reads_and_refuses_what_it_refuses(document: Any, write: Any) -> None:
    try:
        data = write(document)
    except FormatError:
        return
    try:
        expected = strictly(data)
    except FormatError:
        with pytest.raises(FormatError):
            Sample.from_bytes(data)
    else:
        read = Sample.from_bytes(data)
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
def test_numbers_as_rfc_8785_has_them_are_read(number: str) -> None:
    assert Sample.from_bytes(b'{"number":%b,"type":"kolm.sample.v1"}' % number.encode()).number == float(number)


@pytest.mark.parametrize("number", ["-0", "1.0", "1e5", "1E-7", "0.50", "1e-05", "0.000001e0", "10e15", "+1", "01"])
def test_other_spellings_of_numbers_are_refused(number: str) -> None:
    with pytest.raises(FormatError):
        Sample.from_bytes(b'{"number":%b,"type":"kolm.sample.v1"}' % number.encode())


@pytest.mark.parametrize("character", [chr(code) for code in range(0x80)])
def test_every_character_has_one_spelling(character: str) -> None:
    data = rfc8785.dumps({"number": 1, "text": character + "x", "type": "kolm.sample.v1"})
    assert Sample.from_bytes(data).text == character + "x"
    if f'"{character}x"'.encode() in data:  # written as itself
        escaped = data.replace(f'"{character}x"'.encode(), f'"\\u{ord(character):04x}x"'.encode())
        with pytest.raises(FormatError):
            Sample.from_bytes(escaped)
