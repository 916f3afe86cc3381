"""Philox against the published known answers, against numpy's, and the noise that is drawn from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.sampling import sampling_reference
from services.generation.engine.sampling.philox import BLOCKS, TILE, gumbel, philox4x32, words_of, words_of_run

WORD = st.integers(0, 2**32 - 1)

# kat_vectors of the Random123 distribution (Salmon et al. 2011), philox4x32 with 10 rounds: counter, key, result
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
CONSTANTS = {
    32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
    64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
}


def philox(counter: tuple[int, ...], key: tuple[int, ...], bits: int) -> tuple[int, ...]:
    """Philox4xN-10 as the paper states it, for any word size, in Python's integers."""
    (m0, m1), (w0, w1) = CONSTANTS[bits]
    mask = 2**bits - 1
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (p1 >> bits) ^ c1 ^ k0, p1 & mask, (p0 >> bits) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + w0) & mask, (k1 + w1) & mask
    return c0, c1, c2, c3


def compiled(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(word) for word in philox4x32(*map(np.uint32, (*counter, *key))))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert compiled(counter, key) == expected
    assert philox(counter, key, 32) == expected


@given(counter=st.tuples(*[st.integers(0, 2**63)] * 4), key=st.tuples(*[st.integers(0, 2**63)] * 2))
@settings(deadline=None)
def test_the_plain_statement_agrees_with_numpy(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    """numpy has the 64-bit Philox: it checks the rounds that the 32-bit one shares. It counts up before a block."""
    before = np.array([(counter[0] - 1) % 2**64, *counter[1:]], np.uint64)
    if counter[0] == 0:
        return
    bits = np.random.Philox(counter=before, key=np.array(key, np.uint64))
    assert tuple(int(word) for word in bits.random_raw(4)) == philox(counter, key, 64)


@given(counter=st.tuples(WORD, WORD, WORD, WORD), key=st.tuples(WORD, WORD))
@settings(deadline=None)
def test_the_compiled_one_agrees_with_the_plain_statement(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    assert compiled(counter, key) == philox(counter, key, 32) == sampling_reference.philox4x32(counter, key)


@given(seed=st.integers(0, 2**64 - 1), choice=st.integers(0, 100), position=st.integers(0, 2**31), token=WORD)
@settings(deadline=None)
def test_noise_is_keyed_by_seed_choice_position_and_id(seed: int, choice: int, position: int, token: int) -> None:
    word = philox((token // 4, position, choice, 0), (seed % 2**32, seed >> 32), 32)[token % 4]
    expected = -math.log(-math.log((word + 0.5) / 2**32))
    assert gumbel(np.uint64(seed), choice, position, token) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert gumbel(np.uint64(seed), choice, position, token) == sampling_reference.noise(seed, choice, position, token)


@given(
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 100),
    position=st.integers(0, 2**31),
    tile=st.integers(0, 4000),
)
@settings(deadline=None)
def test_a_tile_has_the_words_of_its_ids(seed: int, choice: int, position: int, tile: int) -> None:
    ids = np.arange(tile * TILE, (tile + 1) * TILE, dtype=np.int32)
    key = (seed % 2**32, seed >> 32)
    blocks = [philox((block, position, choice, 0), key, 32) for block in range(tile * BLOCKS, (tile + 1) * BLOCKS)]
    run, listed, shuffled = (np.empty(TILE, np.uint32) for _ in range(3))
    words_of_run(np.uint64(seed), choice, position, tile * TILE, run)
    words_of(np.uint64(seed), choice, position, ids, listed)
    assert run.reshape(4, BLOCKS).T.tolist() == [list(block) for block in blocks]
    assert listed.tolist() == run.tolist()
    words_of(np.uint64(seed), choice, position, ids[::-1].copy(), shuffled)
    assert shuffled.reshape(4, BLOCKS).T.ravel()[::-1].tolist() == run.reshape(4, BLOCKS).T.ravel().tolist()
