import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.encoding.canonical import canonical, parse_json
from ledger.errors import FormatError, LedgerError, SignatureError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.envelope import Envelope, Signature, pae, read_envelope, sign, verify
from ledger.keys.trusted_keys import MOST_SIGNATURES, TrustedKeys
from ledger.tree.entry import MAX_ENTRY_BYTES, MAX_ENVELOPE_BYTES, Entry, entry_bytes
from tests.examples import VECTORS
from tests.keys import seeded_key
from tests.unit.ledger.builders import KEYS, signed_receipt

DSSE = json.loads((VECTORS / "dsse/vectors.json").read_bytes())
ENVELOPE = signed_receipt()
ENTRY = Entry(0, Envelope.from_bytes(ENVELOPE)).to_bytes()


@pytest.mark.parametrize("vector", DSSE["vectors"], ids=lambda vector: vector["id"])
def test_the_published_dsse_vectors_verify_or_fail_as_they_say(vector: dict[str, Any]) -> None:
    envelope = Envelope.from_bytes(json.dumps(vector["envelope"]).encode())
    keys = tuple(PublicKey(bytes.fromhex(DSSE["keys"][name])) for name in vector["trustedKeys"])
    trusted = TrustedKeys({"receipts": keys})
    signed_type = "application/vnd.in-toto+json" if vector["id"] == "payload-type-swapped" else envelope.payload_type
    assert pae(signed_type, envelope.payload).hex() == vector["pae"]
    if vector["expect"] == "accept":
        assert verify(envelope, trusted, "receipts", vector["threshold"]) == envelope.payload
    else:
        with pytest.raises(SignatureError):
            verify(envelope, trusted, "receipts", vector["threshold"])


def test_the_published_signature_is_reproduced_bit_by_bit() -> None:
    vector = DSSE["vectors"][0]
    key = seeded_key(bytes.fromhex(DSSE["seeds"]["A"]), "receipts")
    published = Envelope.from_bytes(json.dumps(vector["envelope"]).encode())
    signed = sign(published.payload, published.payload_type, key)
    assert signed.signatures[0].signature == published.signatures[0].signature


def test_the_example_of_the_protocol_encodes_as_published() -> None:
    example = DSSE["protocol_example"]
    assert pae(example["payloadType"], example["payload"].encode()) == example["pae"].encode()


def test_an_envelope_has_one_spelling_whatever_spelling_it_came_in() -> None:
    loose = json.loads(ENVELOPE)
    loose["signatures"][0]["sig"] = loose["signatures"][0]["sig"].replace("+", "-").replace("/", "_")
    assert Envelope.from_bytes(json.dumps(loose, indent=2).encode()).to_bytes() == ENVELOPE


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"payload": "?"}, "payload"),
        ({"payload": None}, "payload"),
        ({"payloadType": 5}, "payloadType"),
        ({"signatures": []}, "signatures"),
        ({"signatures": {}}, "signatures"),
        ({"signatures": [{"sig": "AA=="}] * (MOST_SIGNATURES + 1)}, "signatures"),
        ({"signatures": [{"keyid": "x"}]}, "signatures[0].sig"),
        ({"signatures": [{"sig": "AA==", "extra": 1}]}, "signatures[0].extra"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_malformed_envelope_is_refused_by_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(FormatError) as caught:
        Envelope.from_bytes(json.dumps(json.loads(ENVELOPE) | change).encode())
    assert caught.value.field == field


def test_an_entry_reads_back() -> None:
    entry = Entry(7, Envelope.from_bytes(ENVELOPE))
    assert Entry.from_bytes(entry.to_bytes()) == entry
    assert Entry.from_bytes(entry.to_bytes()).to_bytes() == entry.to_bytes()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"index":0', b'"index":00', "not JSON"),
        (b'"index":0', b'"index":-1', "index"),
        (b'"index":0', b'"index":0.5', "index"),
        (b'"index":0', b'"index": 0', "canonical"),
        (b'"sig":', b'"sug":', "sig"),
        (b'"index":0', b'"index":0,"more":1', "more"),
        (b'"index":0', b'"index":0,"previous":"sha256:%b"' % (b"0" * 64), "previous"),  # as entries of format 1 had
    ],
)
def test_a_malformed_entry_is_refused(old: bytes, new: bytes, why: str) -> None:
    assert old in ENTRY
    with pytest.raises(FormatError, match=why):
        Entry.from_bytes(ENTRY.replace(old, new, 1))


def test_an_entry_holds_its_envelope_in_canonical_spelling_only() -> None:
    envelope = Envelope.from_bytes(ENVELOPE)
    unnamed = Envelope(envelope.payload, envelope.payload_type, (Signature("", b"\xff" * 64),))
    data = Entry(0, unnamed).to_bytes()
    for spelled in (data.replace(b'{"sig"', b'{"keyid":"","sig"'), data.replace(b'"sig":"/////', b'"sig":"_____')):
        assert spelled != data
        with pytest.raises(FormatError, match="envelope"):
            Entry.from_bytes(spelled)


def test_an_entry_never_exceeds_what_a_tile_bundle_can_hold() -> None:
    full = Signature("ed25519:" + "0" * 64, bytes(64))
    fits = Envelope(bytes(45_000), "application/vnd.kolm.receipt.v1+json", (full,) * 16)
    assert len(fits.to_bytes()) <= MAX_ENVELOPE_BYTES
    assert len(Entry(2**53 - 1, fits).to_bytes()) <= len(fits.to_bytes()) + 256 <= MAX_ENTRY_BYTES
    with pytest.raises(FormatError, match="65535"):
        Entry(0, Envelope(bytes(60_000), "", (full,))).to_bytes()
    with pytest.raises(FormatError, match="65535"):
        Entry.from_bytes(bytes(MAX_ENTRY_BYTES + 1))


@given(st.binary(max_size=100), st.integers(0, len(ENTRY)), st.integers(0, 60))
def test_whatever_the_bytes_the_parsers_raise_only_ledger_errors(junk: bytes, at: int, cut: int) -> None:
    for whole, read in ((ENVELOPE, Envelope.from_bytes), (ENTRY, Entry.from_bytes)):
        for data in (junk, whole[:at] + junk + whole[at + cut :]):
            try:
                value = read(data)
            except LedgerError:
                continue
            assert read(value.to_bytes()) == value


def test_different_roles_do_not_verify_for_each_other() -> None:
    envelope = sign(b"payload", "type", KEYS["receipts"])
    trusted = TrustedKeys.of(*KEYS.values())
    assert verify(envelope, trusted, "receipts") == b"payload"
    with pytest.raises(SignatureError):
        verify(envelope, trusted, "auditor")


_SIGNED = st.tuples(
    st.binary(max_size=40) | st.sampled_from([b"\xff\xff", b"\xfb"]),
    st.text(max_size=8) | st.sampled_from(["application/json", 'a"b', "\\", "\x7f", "é"]),
    st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=8)), min_size=1, max_size=2),
)


_CHANGES = (
    ("+", "-"),
    ('",', '", '),
    ("keyid", "key"),
    ("=", ""),
    ("A", "é"),
    ("A", "?"),
    ('"sig"', '"keyid":"","sig"'),
)


@given(_SIGNED, st.sampled_from([None, *_CHANGES]))
@example((b"payload", "text", [("", b"signature")]), _CHANGES[-1])
def test_the_fast_way_reads_what_the_json_reader_reads(
    signed: tuple[bytes, str, list[tuple[str, bytes]]], change: tuple[str, str] | None
) -> None:
    made = Envelope(signed[0], signed[1], tuple(Signature(*each) for each in signed[2])).to_bytes()
    data = made if change is None else made.decode().replace(*change).encode()
    try:
        expected = Envelope.from_document(parse_json(data))
    except FormatError:
        with pytest.raises(FormatError):
            read_envelope(data)
    else:
        assert read_envelope(data) == (expected, expected.to_bytes())


def test_an_entry_is_canonical_json_around_the_envelope() -> None:
    document = {"envelope": json.loads(ENVELOPE), "index": 7}
    assert entry_bytes(7, ENVELOPE) == canonical(document)
