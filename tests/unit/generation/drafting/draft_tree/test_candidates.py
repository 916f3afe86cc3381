"""Candidates of a model that drafts are drawn with the share of the sampler's noise that was right more often."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from services.generation.drafting.acceptance import DOUBTED, WHOLE, RequestAcceptance
from services.generation.drafting.draft_tree.candidates import (
    UNCOUPLED,
    RankedFirst,
    Vocabulary,
    above,
    better_rule,
    candidates,
    largest,
    record_rules,
    sampling_of,
)
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.sampling.race import gumbel

VOCABULARY, WIDTH, SEED, CHOICE, POSITION = 200, 3, 11, 2, 77
EVERYTHING = Vocabulary(np.arange(VOCABULARY), np.arange(VOCABULARY))


def request(temperature: float) -> EngineRequest:
    return EngineRequest("r", (1,), SamplingParams(temperature=temperature, seed=SEED), CHOICE)


def said(logits: np.ndarray, temperature: float, rule: int) -> tuple[list[int], RankedFirst]:
    """The likeliest tokens, and what each rule ranks first."""
    samplings = sampling_of(request(temperature))
    samplings["position"], samplings["rule"] = POSITION, rule
    found = candidates(logits[None], EVERYTHING, samplings, np.empty((1, 0), np.int64), WIDTH)
    return found.level.tokens[0].tolist(), RankedFirst(int(found.whole[0]), int(found.doubted[0]))


def test_tokens_that_are_asked_for_get_the_shares_that_the_likeliest_get() -> None:
    logits = np.random.default_rng(3).standard_normal(VOCABULARY).astype(np.float32)
    vocabulary = Vocabulary(np.arange(VOCABULARY) + 5, np.concatenate([np.full(5, -1), np.arange(VOCABULARY)]))
    samplings = sampling_of(request(0.8))
    level = candidates(logits[None], vocabulary, samplings, np.empty((1, 0), np.int64), WIDTH).level
    asked = np.array([[*level.tokens[0], 3, -1]])
    again = candidates(logits[None], vocabulary, samplings, asked, WIDTH).level
    assert again.asked_shares[0].tolist() == [*level.shares[0].tolist(), -1.0, -1.0]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.1, 1.5, 6.0])
def test_the_noise_is_weighed_by_the_probability_of_all_but_the_likeliest(seed: int, spread: float) -> None:
    logits = (np.random.default_rng(seed).standard_normal(VOCABULARY) * spread).astype(np.float32)
    scores = logits.astype(np.float64) / 0.7
    noise = np.array(
        [gumbel(np.uint64(SEED), np.int32(CHOICE), np.int32(POSITION), np.int64(v)) for v in range(VOCABULARY)]
    )
    shares = np.exp(scores - scores.max())
    doubt = 1.0 - shares.max() / shares.sum()
    near = np.where(scores > scores.max() - 10.0, 0.0, -np.inf)
    best = {WHOLE: scores + noise + near, DOUBTED: scores + doubt * noise + near, UNCOUPLED: scores}
    for rule, expected in best.items():
        tokens, ranked = said(logits, 0.7, rule)
        assert tokens == np.argsort(-expected)[:WIDTH].tolist()
        if rule != UNCOUPLED:
            assert ranked == (best[WHOLE].argmax(), best[DOUBTED].argmax())


def test_without_noise_there_is_nothing_to_tell_apart() -> None:
    logits = np.linspace(0.0, 9.0, VOCABULARY, dtype=np.float32)
    for temperature, rule in ((0.0, WHOLE), (0.0, DOUBTED), (1.0, UNCOUPLED)):
        assert said(logits, temperature, rule) == ([199, 198, 197], (199, 199))


def test_the_whole_noise_until_the_other_has_been_right_more_often() -> None:
    acceptance = RequestAcceptance()

    assert better_rule(acceptance) == WHOLE
    record_rules(acceptance, RankedFirst(5, 6), 6)
    assert better_rule(acceptance) == DOUBTED
    record_rules(acceptance, RankedFirst(5, 6), 7)
    record_rules(acceptance, RankedFirst(6, 6), 6)  # where both say the same, neither wins
    assert better_rule(acceptance) == DOUBTED
    for _ in range(2):
        record_rules(acceptance, RankedFirst(5, 6), 5)
    assert better_rule(acceptance) == WHOLE


ROWS = arrays(np.float32, st.integers(0, 300), elements=st.floats(-4.0, 4.0, width=32))


@given(ROWS, st.floats(-5.0, 5.0, width=32))
def test_above_is_every_place_above_and_no_other(row: np.ndarray, limit: float) -> None:
    places = np.full(len(row), -1, np.int64)
    count = above(row, np.float32(limit), places)
    assert places[:count].tolist() == np.flatnonzero(row > np.float32(limit)).tolist()


@given(ROWS)
def test_largest_is_the_maximum(row: np.ndarray) -> None:
    assert largest(row) == (row.max() if len(row) else -np.inf)


@pytest.mark.parametrize("at", range(0, 300, 7))
def test_one_value_is_found_wherever_it_stands(at: int) -> None:
    row, places = np.full(300, -np.inf, np.float32), np.empty(300, np.int64)
    assert (largest(row), above(row, np.float32(0.0), places)) == (-np.inf, 0)
    row[at] = 1.0
    assert (largest(row), above(row, np.float32(0.0), places), places[0]) == (1.0, 1, at)
