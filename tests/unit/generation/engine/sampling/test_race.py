"""Noise, the elementary functions under it, and the race that it decides."""

import math
import random
import re
import struct
from bisect import bisect_left
from decimal import Context, Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generation.engine.request import UnusableLogits
from services.generation.engine.sampling.race import (
    BLOCKS,
    GROUP,
    TILE,
    Row,
    _limit,
    _may_win,
    _rounds,
    exp64,
    gumbel,
    key_of,
    log64,
    noise_of,
    noisy_argmax,
    value_of,
    words_of,
    words_of_run,
)
from services.generation.target.arrays import Float32, Float64, Int32
from tests.examples import examples
from tests.fakes.table_target import rows
from tests.numerics import sampling_reference

_EXACT = Context(prec=60)
_DOCS = Path(__file__).parents[5] / "docs"


def bits(x: float) -> bytes:
    return b"NaN" if math.isnan(x) else struct.pack("<d", x)


def samples(seed: int, count: int) -> list[float]:
    rng = random.Random(seed)
    kinds = (
        lambda: rng.uniform(-30.0, 0.0),
        lambda: rng.uniform(-720.0, 720.0),
        lambda: (rng.getrandbits(32) + 0.5) / 2**32,
        lambda: math.ldexp(rng.uniform(-1.0, 1.0), rng.randrange(-80, 1)),
        lambda: 1.0 + rng.uniform(-0.5, 0.5),
        lambda: struct.unpack("<d", rng.getrandbits(64).to_bytes(8, "little"))[0],
    )
    return [kinds[number % len(kinds)]() for number in range(count)]


@pytest.mark.slow
def test_100_000_values_have_the_bits_of_plain_floats() -> None:
    """Python's floats are never fused: equality shows that the compiled programs are not either."""
    values = samples(1, 100_000)
    assert [bits(exp64(x)) for x in values] == [bits(sampling_reference.exp64(x)) for x in values]
    assert [bits(log64(x)) for x in values] == [bits(sampling_reference.log64(x)) for x in values]


def test_both_are_within_one_ulp() -> None:
    for x in samples(2, 6_000):
        if -708.0 <= x <= 709.0:
            assert abs(Decimal(exp64(x)) - Decimal(x).exp(_EXACT)) < Decimal(math.ulp(exp64(x)))
        if 0.0 < x < math.inf:
            assert abs(Decimal(log64(x)) - Decimal(x).ln(_EXACT)) < Decimal(math.ulp(log64(x)))


def test_the_page_has_the_coefficients() -> None:
    page = "".join(path.read_text() for path in sorted(_DOCS.glob("numerics*.md")))
    rows = re.findall(r"^\| (\d+) \| (0x\S+) \| \|(?: (\d+) \| (0x\S+) \|)?", page, re.MULTILINE)
    assert {int(n): float.fromhex(value) for n, value, _, _ in rows} == {
        n: 1.0 / math.factorial(n) for n in range(2, 14)
    }
    assert {int(n): float.fromhex(value) for _, _, n, value in rows if n} == {
        n: 2.0 / (2 * n + 1) for n in range(1, 11)
    }


@pytest.mark.parametrize(
    ("x", "exp", "log"),
    [
        (0.0, 1.0, -math.inf),
        (-0.0, 1.0, -math.inf),
        (1.0, math.e, 0.0),
        (math.inf, math.inf, math.inf),
        (-math.inf, 0.0, math.nan),
        (-708.1, 0.0, math.nan),
        (709.1, math.inf, math.log(709.1)),
        (5e-324, 1.0, math.log(5e-324)),
        (math.nan, math.nan, math.nan),
    ],
)
def test_the_ends_of_the_ranges(x: float, exp: float, log: float) -> None:
    assert exp64(x) == pytest.approx(exp, rel=1e-15, nan_ok=True)
    assert log64(x) == pytest.approx(log, rel=1e-15, nan_ok=True)


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
    return tuple(int(word) for word in _rounds(*map(np.uint64, (*counter, *key))))


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


SEEDS = st.integers(0, 2**64 - 1)
TEMPERATURES = st.sampled_from((1e-6, 0.05, 0.7, 1.0, 3.0, 100.0))


def winner(logits: Float32, tokens: Int32, temperature: float, seed: int) -> int:
    """By computing every score."""
    scores = [float(logits[t]) / temperature + gumbel(np.uint64(seed), 2, 77, int(t)) for t in tokens]
    return int(tokens[int(np.argmax(scores))])


def raced(logits: Float32, tokens: Int32 | None, temperature: float, seed: int) -> int:
    ids = np.arange(len(logits)) if tokens is None else tokens
    best = int(ids[np.argmax(logits[ids])])
    return noisy_argmax(logits, best, tokens, temperature, np.uint64(seed), 2, 77)


@given(logits=rows(), temperature=TEMPERATURES, seed=SEEDS)
@settings(deadline=None, max_examples=examples(500))
def test_all_ids(logits: Float32, temperature: float, seed: int) -> None:
    assert raced(logits, None, temperature, seed) == winner(logits, np.arange(len(logits)), temperature, seed)


@given(logits=rows(), temperature=TEMPERATURES, seed=SEEDS, share=st.sampled_from((0.02, 0.3, 0.9, 1.0)))
@settings(deadline=None, max_examples=examples(500))
def test_some_ids(logits: Float32, temperature: float, seed: int, share: float) -> None:
    chosen = np.random.default_rng(seed).random(len(logits)) < share
    chosen[np.argmax(logits)] = True
    tokens = np.flatnonzero(chosen).astype(np.int32)
    assert raced(logits, tokens, temperature, seed) == winner(logits, tokens, temperature, seed)


def test_few_candidates_are_given_a_second_look() -> None:
    """A bound that let everything pass would still be right, and slow."""
    logits = np.zeros(20_000, np.float32)
    limit, octaves = _limit(0.0, 8.0), np.float32(1.4426950408889634)
    words = np.random.default_rng(0).integers(2**32, size=len(logits), dtype=np.uint32)
    passing = sum(map(bool, (_may_win(np.float32(0), word, np.float32(0), octaves, limit) for word in words)))
    assert 1 < passing < 30  # exp(-8) of them could win: 6.7
    far = sum(map(bool, (_may_win(logit, words[0], np.float32(30), octaves, limit) for logit in logits)))
    assert far == 0


@given(gap=st.floats(0.0, 26.0), top=st.floats(-3.0, 22.0), temperature=TEMPERATURES, highest=st.floats(-1e4, 1e4))
@settings(deadline=None, max_examples=examples(1000))
def test_a_word_that_can_win_is_never_given_up(gap: float, top: float, temperature: float, highest: float) -> None:
    """The least word with which a candidate reaches the score, found by bisection, passes."""
    best = np.float32(highest)
    value = np.float32(best - np.float32(max(0.0, gap + 3.0 - top) * temperature))
    scaled, score = float(best) / temperature, float(best) / temperature + top
    reaches = lambda word: float(value) / temperature + noise_of(np.uint32(word)) >= score  # noqa: E731
    word = bisect_left(range(2**32), True, key=reaches)
    if word < 2**32:
        octaves = np.float32(1.4426950408889634 / temperature)
        assert _may_win(value, np.uint32(word), best, octaves, _limit(scaled, score))


def row(*values: float) -> Row:
    return Row.of(np.array(values, np.float32))


@given(rows())
@settings(deadline=None, max_examples=examples(300))
def test_the_two_best_are_those_of_a_sort(logits: Float32) -> None:
    found, order = Row.of(logits), np.argsort(-logits, kind="stable")
    assert found.token == order[0]
    assert found.best == logits[order[0]]
    assert found.second == (logits[order[1]] if len(logits) > 1 else -math.inf)
    assert [value_of(peak) for peak in found.peaks] == [
        logits[start : start + GROUP].max() for start in range(0, len(logits), GROUP)
    ]


def test_the_lowest_id_among_equals() -> None:
    assert (row(1, 3, 2, 3).token, row(1, 3, 2, 3).second) == (1, 3.0)
    assert row(-np.inf, -5).token == 1
    assert row(-0.0, 0.0, -1).token == 0


def test_zeros_have_one_sign() -> None:
    found = row(-0.0, -0.0)
    assert (math.copysign(1.0, found.best), math.copysign(1.0, found.second)) == (1.0, 1.0)


@given(rows())
@settings(deadline=None)
def test_keys_are_in_the_order_of_the_values(logits: Float32) -> None:
    keys = np.array([key_of(bits) for bits in logits.view(np.int32)])
    assert (np.sign(keys[:, None] - keys[None]) == np.sign(_differences(logits))).all()
    assert (np.array([value_of(key) for key in keys], np.float32) == logits).all()


def _differences(logits: Float32) -> Float64:
    wide = np.maximum(logits.astype(np.float64), -1e300)
    return wide[:, None] - wide[None]


@pytest.mark.parametrize("place", [0, 130, 299])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_a_row_with_a_nan_or_an_infinity_is_refused(place: int, value: float) -> None:
    logits = np.zeros(300, np.float32)
    logits[place] = value
    with pytest.raises(UnusableLogits):
        Row.of(logits, "the row")


def test_a_row_of_minus_infinities_is_refused() -> None:
    with pytest.raises(UnusableLogits):
        row(*[-np.inf] * 300)
