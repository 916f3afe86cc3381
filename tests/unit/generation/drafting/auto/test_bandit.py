"""The rule by itself: it goes to what pays, goes on trying, follows a change, and does the same for the same seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from services.generation.drafting.auto.arm import OFF, Arm, arms_of
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.tally import Record, Tally

A, B, C = Arm("lookahead"), Arm("rest"), Arm("draft", 4)


def passes(bandit: Bandit, gains: Mapping[Arm, float], count: int, rng: random.Random) -> list[Arm]:
    """Passes of arms with these mean gains: one to so many tokens, at a cost of a little more than a plain pass."""
    taken = []
    for _ in range(count):
        arm = bandit.next()
        taken.append(arm)
        tokens = 1 if arm == OFF else 1 + 2 * (rng.random() < (1.2 * gains[arm] - 1) / 2)
        bandit.saw(Tally(1.0, float(tokens), 1.0 if arm == OFF else 1.2, 5.0))
    return taken


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("best", [A, B, C])
def test_it_moves_to_the_arm_that_pays_and_goes_on_trying_the_others(seed: int, best: Arm) -> None:
    gains = {arm: 2.2 if arm == best else 1.1 for arm in (A, B, C)}
    bandit = Bandit((A, B, C, OFF), Record(0.998), seed)
    taken = passes(bandit, gains, 3000, random.Random(seed))
    late = Counter(taken[1000:])
    assert late[best] > 0.85 * 2000
    assert all(late[arm] > 0 for arm in (A, B, C))
    assert late[OFF] == 0


@pytest.mark.parametrize("seed", range(4))
def test_where_nothing_pays_it_goes_off_and_looks_again_now_and_then(seed: int) -> None:
    bandit = Bandit((A, B, OFF), Record(0.998), seed)
    taken = passes(bandit, {A: 0.85, B: 0.84}, 2000, random.Random(seed))
    late = Counter(taken[1000:])
    assert late[OFF] > 800
    assert late[A] > 0
    assert late[B] > 0


@pytest.mark.parametrize("seed", range(4))
def test_it_follows_when_another_arm_becomes_the_better_one(seed: int) -> None:
    bandit, rng = Bandit((A, B, OFF), Record(0.998), seed), random.Random(seed)
    passes(bandit, {A: 2.2, B: 1.1}, 1500, rng)
    taken = passes(bandit, {A: 1.1, B: 2.2}, 1500, rng)
    assert Counter(taken[500:])[B] > 800


def test_a_sequence_starts_with_the_default_and_the_next_one_knows_what_was_learned() -> None:
    shared, rng = Record(0.998), random.Random(0)
    first = Bandit((A, B, OFF), shared, 1)
    assert first.next() == A
    passes(first, {A: 1.05, B: 2.2}, 2000, rng)
    assert Bandit((A, B, OFF), shared, 2).next() == B


def test_a_sequences_own_text_outweighs_what_others_had() -> None:
    shared = Record(0.998)
    for _ in range(500):
        shared.add(A, Tally(1.0, 2.5, 1.2, 5.0))
        shared.add(B, Tally(1.0, 2.0, 1.2, 5.0))
    bandit = Bandit((A, B, OFF), shared, 3)
    assert bandit.next() == A
    taken = passes(bandit, {A: 1.0, B: 1.7}, 60, random.Random(3))
    assert Counter(taken[30:])[B] > 20


def test_the_seed_decides_the_draws() -> None:
    runs = [
        passes(Bandit((A, B, C, OFF), Record(0.998), seed), {A: 1.5, B: 1.4, C: 1.3}, 500, random.Random(0))
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_pass_after_a_change_says_nothing_about_the_arm() -> None:
    shared = Record(0.998)
    bandit = Bandit((A, OFF), shared, 0)
    for expected in (0.0, 1.0):
        bandit.next()
        bandit.saw(Tally(1.0, 3.0, 1.2, 5.0))
        assert shared.of(A).passes == expected


def test_a_dropped_drafter_is_not_chosen_again() -> None:
    bandit = Bandit((C, Arm("draft", 2), A, OFF), Record(0.998), 0)
    assert bandit.next() == C
    bandit.drop("draft")
    assert {bandit.next() for _ in range(500)} == {A}
    bandit.drop("lookahead")
    assert {bandit.next() for _ in range(500)} == {OFF}


def test_depths_are_arms_unless_the_request_says_one() -> None:
    names = ("eagle3/cidv1:sha256:ab", "lookahead", "draft")
    assert [(arm.method, arm.k) for arm in arms_of(names, None)] == [
        ("eagle3", None), ("lookahead", None), ("draft", 4), ("draft", 2), ("off", None),
    ]  # fmt: skip
    assert [arm.k for arm in arms_of(names, 3)] == [3, 3, 3, None]
