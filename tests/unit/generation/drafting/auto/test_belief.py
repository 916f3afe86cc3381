"""What comparisons make one believe: least squares over all of them, each weighed by how much they scatter."""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.belief import Beliefs, Compared, Evidence

A, B, C = Arm("eagle3/one"), Arm("rest"), Arm("draft", 4)
ARMS = (A, B, C, OFF)
PAIRS = [(A, OFF), (B, OFF), (C, OFF), (B, A), (A, B), (C, A), (C, B)]


def alike(count: float, times: float) -> Evidence:
    """Comparisons that all said the same."""
    return Evidence(count, count * math.log(times), count * math.log(times) ** 2)


def test_of_arms_of_which_nothing_is_known_a_little_less_is_expected_than_of_the_best_one() -> None:
    nothing = Beliefs(ARMS, {})
    assert not nothing.known
    assert [nothing.gain(arm) for arm in ARMS] == pytest.approx([1.35, 1.35, 1.35, 1.0])
    assert [nothing.error(arm) for arm in ARMS] == pytest.approx([0.3, 0.3, 0.3, 0.0])
    one = Beliefs(ARMS, {(A, OFF): alike(1000, 3.0)})
    assert one.known
    assert one.gain(A) == pytest.approx(3.0, rel=0.01)
    assert one.gain(B) == one.gain(C) == pytest.approx(0.9 * 3.0, rel=0.01)
    assert one.error(A) < 0.02 < one.error(B)


def test_an_arm_is_known_by_way_of_the_one_it_was_compared_with() -> None:
    beliefs = Beliefs(ARMS, {(A, OFF): alike(2000, 2.0), (B, A): alike(2000, 1.2), (C, B): alike(2000, 0.5)})
    assert [beliefs.gain(arm) for arm in ARMS] == pytest.approx([2.0, 2.4, 1.2, 1.0], rel=0.01)


def test_comparisons_with_arms_that_are_not_there_say_nothing() -> None:
    seen = {(A, OFF): alike(9, 2.0)}
    other = {(A, C): alike(9, 5.0), (C, OFF): alike(9, 9.0), (C, A): alike(9, 9.0)}
    few, more = Beliefs((A, B, OFF), seen), Beliefs((A, B, OFF), {**seen, **other})
    assert [few.gain(arm) for arm in (A, B)] == pytest.approx([more.gain(arm) for arm in (A, B)], rel=0.02)
    assert not Beliefs((B, OFF), {**seen, **other}).known


compared = st.dictionaries(st.sampled_from(PAIRS), st.builds(alike, st.floats(0.1, 50), st.floats(0.3, 4)))


@given(compared)
def test_it_is_the_least_squares_solution_over_all_comparisons(found: Compared) -> None:
    places = {A: 0, B: 1, C: 2}
    best = max(
        ((e.total + 2 * math.log(1.5)) / (e.weight + 2) for (_, o), e in found.items() if o == OFF), default=None
    )
    expected = (math.log(1.5) if best is None else best) + math.log(0.9)
    rows = [(row, expected, 0.3) for row in np.eye(3)]
    for (one, other), evidence in found.items():
        row = np.zeros(3)
        row[places[one]] = 1.0
        if other != OFF:
            row[places[other]] = -1.0
        same = [e.weight for (_, o), e in found.items() if (o == OFF) == (other == OFF)]
        scatter = (0.4 if other == OFF else 0.2) * math.sqrt(4 / (4 + sum(same)))  # those of a pair say the same
        rows.append((row, evidence.total / evidence.weight, scatter / math.sqrt(evidence.weight)))
    matrix, wanted = (np.array([part / scatter for *parts, scatter in rows for part in [parts[n]]]) for n in (0, 1))
    solution = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    beliefs = Beliefs(ARMS, found)
    assert [math.log(beliefs.gain(arm)) for arm in (A, B, C)] == pytest.approx(solution.tolist(), abs=1e-6)
    spread = np.sqrt(np.diag(np.linalg.inv(matrix.T @ matrix)))
    assert [beliefs.error(arm) for arm in (A, B, C)] == pytest.approx(spread.tolist(), abs=1e-6)


def test_what_scatters_more_says_less() -> None:
    calm = {(A, OFF): alike(10, 2.0), (B, A): Evidence(10, 1.0, 10 * 0.1**2)}
    wild = {(A, OFF): alike(10, 2.0), (B, A): Evidence(10, 1.0, 10 * 0.9**2)}
    assert Beliefs(ARMS, calm).error(B) < 0.7 * Beliefs(ARMS, wild).error(B)


def test_each_arm_is_drawn_as_often_as_it_is_likely_to_be_the_best() -> None:
    """Both are as uncertain beside off; how they compare with each other is well known, and counts."""
    seen = {(A, OFF): Evidence(4, 4 * math.log(2), 4.0), (B, A): alike(2, 0.95)}
    beliefs = Beliefs((A, B, OFF), seen)
    means, spread = np.array(beliefs._means), np.array(beliefs._spread)
    apart = (means[0] - means[1]) / np.linalg.norm(spread[0] - spread[1])
    drawn = Counter(beliefs.drawn(random.Random(seed), (A, B)) for seed in range(2000))
    assert drawn[A] / 2000 == pytest.approx(NormalDist().cdf(apart), abs=0.03)
    assert 0.6 < drawn[A] / 2000 < 0.95
    assert {beliefs.drawn(random.Random(seed), (B,)) for seed in range(9)} == {B}


def test_off_is_drawn_where_all_others_are_slower() -> None:
    beliefs = Beliefs(ARMS, {(arm, OFF): alike(99, 0.7) for arm in (A, B, C)})
    assert {beliefs.drawn(random.Random(seed), ARMS) for seed in range(50)} == {OFF}


def test_how_much_of_a_text_s_difficulty_another_arm_shares_is_measured() -> None:
    assert Beliefs(ARMS, {}).alike == pytest.approx(1 - 0.2**2 / (2 * 0.4**2))
    texts = {(A, OFF): Evidence(96, 0.0, 96 * 0.4**2)}
    assert Beliefs(ARMS, texts | {(B, A): Evidence(96, 0.0, 96 * 0.1**2)}).alike == pytest.approx(0.965, abs=0.002)
    assert Beliefs(ARMS, texts | {(B, A): Evidence(96, 0.0, 96 * 0.8**2)}).alike == 0.5
