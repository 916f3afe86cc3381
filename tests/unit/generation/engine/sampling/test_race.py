"""The race of noisy scores: giving candidates up early never changes the winner."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.generation.engine.sampling.philox import gumbel, noise_of
from services.generation.engine.sampling.race import _limit, _may_win, noisy_argmax
from tests.examples import examples
from tests.fakes.logits import rows

SEEDS = st.integers(0, 2**64 - 1)
TEMPERATURES = st.sampled_from((1e-6, 0.05, 0.7, 1.0, 3.0, 100.0))


def winner(logits: NDArray[np.float32], tokens: NDArray[np.int32], temperature: float, seed: int) -> int:
    """By computing every score."""
    scores = [float(logits[t]) / temperature + gumbel(np.uint64(seed), 2, 77, int(t)) for t in tokens]
    return int(tokens[int(np.argmax(scores))])


def raced(logits: NDArray[np.float32], tokens: NDArray[np.int32] | None, temperature: float, seed: int) -> int:
    ids = np.arange(len(logits)) if tokens is None else tokens
    best = int(ids[np.argmax(logits[ids])])
    return noisy_argmax(logits, best, tokens, temperature, np.uint64(seed), 2, 77)


@given(logits=rows(), temperature=TEMPERATURES, seed=SEEDS)
@settings(deadline=None, max_examples=examples(500))
def test_all_ids(logits: NDArray[np.float32], temperature: float, seed: int) -> None:
    assert raced(logits, None, temperature, seed) == winner(logits, np.arange(len(logits)), temperature, seed)


@given(logits=rows(), temperature=TEMPERATURES, seed=SEEDS, share=st.sampled_from((0.02, 0.3, 0.9, 1.0)))
@settings(deadline=None, max_examples=examples(500))
def test_some_ids(logits: NDArray[np.float32], temperature: float, seed: int, share: float) -> None:
    chosen = np.random.default_rng(seed).random(len(logits)) < share
    chosen[np.argmax(logits)] = True
    tokens = np.flatnonzero(chosen).astype(np.int32)
    assert raced(logits, tokens, temperature, seed) == winner(logits, tokens, temperature, seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0])
def test_a_whole_vocabulary_as_a_list_and_as_none(spread: float, seed: int) -> None:
    logits = (np.random.default_rng(seed).standard_normal(151_936) * spread).astype(np.float32)
    everything = np.arange(len(logits), dtype=np.int32)
    assert raced(logits, None, 1.0, seed) == raced(logits, everything, 1.0, seed)


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
