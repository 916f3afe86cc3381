"""Philox against the published known answers, against numpy's, and the noise that is drawn from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.philox import gumbel, noisy_argmax, philox4x32, two_best

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
    assert compiled(counter, key) == philox(counter, key, 32)


@given(seed=st.integers(0, 2**64 - 1), choice=st.integers(0, 100), position=st.integers(0, 2**31), token=WORD)
@settings(deadline=None)
def test_noise_is_keyed_by_seed_choice_position_and_id(seed: int, choice: int, position: int, token: int) -> None:
    word = philox((token // 4, position, choice, 0), (seed % 2**32, seed >> 32), 32)[token % 4]
    expected = -math.log(-math.log((word + 0.5) / 2**32))
    assert gumbel(np.uint64(seed), choice, position, token) == expected


@given(
    seed=st.integers(0, 2**64 - 1),
    spread=st.sampled_from((0.0, 0.1, 1.0, 5.0, 30.0)),
    temperature=st.sampled_from((0.05, 0.7, 1.0, 3.0)),
    some=st.booleans(),
)
@settings(deadline=None, max_examples=200)
def test_giving_up_candidates_early_never_changes_the_winner(
    seed: int, spread: float, temperature: float, some: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(300) * spread).astype(np.float32)
    logits[rng.integers(300)] = -np.inf
    tokens = np.flatnonzero(rng.random(300) < 0.3) if some else np.empty(0, np.int64)
    candidates = tokens if len(tokens) else np.arange(300)
    noisy = [float(logits[t]) / temperature + gumbel(np.uint64(seed), 2, 77, int(t)) for t in candidates]
    assert noisy_argmax(logits, tokens, temperature, np.uint64(seed), 2, 77) == candidates[int(np.argmax(noisy))]


def test_the_two_best_take_the_lowest_id_among_equals() -> None:
    found = lambda *values: two_best(np.array(values, np.float32))  # noqa: E731
    assert found(1, 3, 2, 3) == (1, 3, 3)
    assert found(-1, -2) == (0, -1, -2)
    assert found(5) == (0, 5, -np.inf)
    assert found(-np.inf, -np.inf)[0] == 0
    assert found(1, np.nan, 2)[0] == -1
    assert found(np.nan, 1, 2)[0] == -1
