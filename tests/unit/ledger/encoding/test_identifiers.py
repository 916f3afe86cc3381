"""cid, digest, commitment, stream digest, timestamp, receipt id, seed, base64."""

import hashlib
import re
import struct
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.encoding.commitment import commit, new_salt
from ledger.encoding.document import Members, Seed
from ledger.encoding.stream_digest import StreamDigest
from ledger.encoding.text_forms import (
    TIME,
    cid,
    cid_of_json,
    decode_base64,
    encode_base64,
    new_receipt_id,
    parse_cid,
    parse_digest,
    parse_timestamp,
    timestamp,
)
from ledger.errors import FormatError

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4's own example


def test_a_cid_is_the_sha_256_of_the_bytes_and_reads_back() -> None:
    assert cid(b"abc") == f"cidv1:sha256:{ABC}"
    assert parse_cid(cid(b"abc")) == bytes.fromhex(ABC)
    assert cid_of_json({"b": 1, "a": 2}) == cid(b'{"a":2,"b":1}')


@pytest.mark.parametrize("text", ["", ABC, f"sha256:{ABC.upper()}", f"sha256:{ABC[:-1]}", f"sha256:{ABC}\n", None, 7])
def test_a_digest_in_any_other_form_is_refused(text: object) -> None:
    with pytest.raises(FormatError, match=r"^previous: "):
        parse_digest(text, "previous")
    with pytest.raises(FormatError, match=r"^base_cid: "):
        parse_cid(text if text is None or isinstance(text, int) else f"cidv1:{text}x", "base_cid")


def test_a_commitment_hashes_domain_zero_byte_salt_and_little_endian_ids() -> None:
    salt = bytes(range(32))
    expected = hashlib.sha256(b"kolm.prompt.v1\x00" + salt + bytes.fromhex("01000000ffffffff")).hexdigest()
    assert commit("kolm.prompt.v1", salt, [1, 2**32 - 1]) == f"sha256:{expected}"


def test_a_commitment_hides_behind_its_salt_and_its_domain() -> None:
    salts = {new_salt() for _ in range(4)}
    domains = ("kolm.prompt.v1", "kolm.output.v1")
    assert len({commit(domain, salt, [1, 2]) for salt in salts for domain in domains}) == 8


@pytest.mark.parametrize(
    ("salt", "ids"), [(b"short", [1]), (bytes(32), [-1]), (bytes(32), [2**32]), (bytes(32), ["a"])]
)
def test_what_cannot_be_committed_to_is_refused(salt: bytes, ids: list[int]) -> None:
    with pytest.raises(FormatError):
        commit("kolm.prompt.v1", salt, ids)


def test_the_stream_digest_chains_token_and_the_bits_of_both_logits() -> None:
    stream = StreamDigest()
    start = hashlib.sha256(b"kolm.stream.v1").digest()
    assert stream.hexdigest() == "sha256:" + start.hex()
    stream.update(5, 1.5, -2.0)
    link = (5).to_bytes(4, "little") + bytes.fromhex("0000c03f") + bytes.fromhex("000000c0")
    assert stream.hexdigest() == "sha256:" + hashlib.sha256(start + link).hexdigest()


@given(st.integers(0, 2**32 - 1), st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_one_bit_in_either_logit_changes_the_stream_digest(token: int, best: float, second: float) -> None:
    def of(*logits: float) -> str:
        stream = StreamDigest()
        stream.update(token, *logits)
        return stream.hexdigest()

    flipped = struct.unpack("<f", (int.from_bytes(struct.pack("<f", best), "little") ^ 1).to_bytes(4, "little"))[0]
    if flipped == flipped:  # the neighbour of infinity is a NaN
        assert of(best, second) != of(flipped, second)
    assert (of(best, second) == of(second, best)) == (struct.pack("<f", best) == struct.pack("<f", second))


def test_a_copied_stream_digest_goes_its_own_way() -> None:
    stream = StreamDigest()
    stream.update(1, 2.0, 1.0)
    twin = stream.copy()
    assert twin.hexdigest() == stream.hexdigest()
    twin.update(2, 2.0, 1.0)
    assert twin.hexdigest() != stream.hexdigest()


@pytest.mark.parametrize("link", [(1, float("nan"), 0.0), (-1, 1.0, 0.0), (2**32, 1.0, 0.0), (1, 1e300, 0.0)])
def test_what_has_no_float32_bits_is_refused_by_the_stream_digest(link: tuple[int, float, float]) -> None:
    with pytest.raises(FormatError):
        StreamDigest().update(*link)


def test_times_are_utc_with_milliseconds() -> None:
    moment = datetime(2026, 1, 2, 4, 4, 5, 678999, tzinfo=timezone(timedelta(hours=1)))
    assert timestamp(moment) == "2026-01-02T03:04:05.678Z"
    assert parse_timestamp("2026-01-02T03:04:05.678Z") == datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    with pytest.raises(FormatError):
        timestamp(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    "text", ["2026-01-02T03:04:05Z", "2026-02-30T03:04:05.000Z", "2026-01-02T03:04:05.678+00:00", 5]
)
def test_times_in_any_other_form_are_refused(text: object) -> None:
    with pytest.raises(FormatError, match="issued_at"):
        parse_timestamp(text, "issued_at")


@pytest.mark.parametrize("time", ["24:00:00", "23:60:00", "23:59:60"])
def test_a_time_of_day_has_one_text_for_every_version_of_python(time: str) -> None:  # 3.14 parses 24:00:00
    assert re.fullmatch(TIME, f"2026-01-02T{time}.000Z") is None


def test_a_receipt_id_is_laid_out_as_in_rfc_9562() -> None:
    # RFC 9562 appendix A.6: 2022-02-22T19:22:22Z, rand_a 0xCC3, rand_b 0x18C4DC0C0C07398F
    moment = datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)
    randomness = (0xCC3 << 62 | 0x18C4DC0C0C07398F).to_bytes(10, "big")
    assert new_receipt_id(moment, randomness) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


class _Seeded(Members, frozen=True):
    seed: Seed


@given(st.integers(0, 2**64 - 1))
def test_every_64_bit_seed_survives_json(seed: int) -> None:
    assert _Seeded.from_document({"seed": Seed(seed).written()}).seed == seed


@pytest.mark.parametrize(
    "value", [-1, 2**53, "7", "9007199254740991", "09007199254740992", str(2**64), True, None, 1.5]
)
def test_a_seed_has_one_form_only(value: object) -> None:
    with pytest.raises(FormatError, match=r"sampling\.seed"):
        _Seeded.from_document({"seed": value}, "sampling")


@given(st.binary(max_size=40))
def test_base64_reads_back(data: bytes) -> None:
    assert decode_base64(encode_base64(data), "sig") == data


@pytest.mark.parametrize("text", ["AB==", "A", "AA", "AA =", "AA==\n", "-_8=", "ä", None, 3])
def test_base64_in_a_second_spelling_is_refused(text: object) -> None:
    with pytest.raises(FormatError, match="sig"):
        decode_base64(text, "sig")
