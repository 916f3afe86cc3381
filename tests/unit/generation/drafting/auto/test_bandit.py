"""The rule by itself: it goes to what pays, goes on trying, follows a change, and does the same for the same dice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from services.generation.drafting.auto.arm import OFF, Arm, arms_of
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.tally import Record, Tally

A, B, C = Arm("lookahead"), Arm("rest"), Arm("draft", 4)
ARMS = (A, B, C, OFF)


def passes(bandit: Bandit, gains: Mapping[Arm, float], count: int, rng: random.Random) -> list[Arm]:
    """Passes of arms with these mean gains: one to so many tokens, at a cost of a little more than a plain pass."""
    taken = []
    for _ in range(count):
        arm = bandit.next()
        taken.append(arm)
        tokens = 1 if arm == OFF else 1 + 4 * (rng.random() < (1.2 * gains[arm] - 1) / 4)
        bandit.saw(Tally(1.0, float(tokens), 1.0 if arm == OFF else 1.2, 5.0))
    bandit.tell()
    return taken


def sequences(
    shared: Record, gains: Mapping[Arm, float], count: int, rng: random.Random, length: int = 30
) -> list[list[Arm]]:
    """As many sequences, one after the other, of so many passes each; texts differ."""
    taken = []
    for _ in range(count):
        text = rng.uniform(0.8, 1.25)
        bandit = Bandit((*gains, OFF), shared, random.Random(rng.random()))
        shadow, all_gains = bandit.shadow(), {**gains, OFF: 1 / text}
        if shadow is not None:
            bandit.compared(shadow, bandit.arm, all_gains[shadow] / all_gains[bandit.arm] * rng.uniform(0.9, 1.1))
        taken.append(passes(bandit, {arm: text * gain for arm, gain in gains.items()}, length, rng))
    return taken


def share(taken: list[list[Arm]], arm: Arm) -> float:
    return sum(line.count(arm) for line in taken) / sum(map(len, taken))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("best", [A, B, C])
def test_requests_move_to_the_arm_that_pays_having_compared_the_others(seed: int, best: Arm) -> None:
    gains = {arm: 2.2 if arm == best else 1.3 for arm in (A, B, C)}
    shared = Record(0.9995)
    taken = sequences(shared, gains, 120, random.Random(seed))
    assert share(taken[60:], best) > 0.8
    assert {arm for pair in shared.compared for arm in pair} == {*ARMS}


@pytest.mark.parametrize("seed", range(3))
def test_one_long_request_moves_too(seed: int) -> None:
    (taken,) = sequences(Record(0.9995), {A: 1.1, B: 2.6}, 1, random.Random(seed), length=3000)
    assert taken[0] == A
    assert Counter(taken[1500:])[B] > 1300


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("gains", "requests", "best", "changed", "later"),
    [
        ({A: 2.2, B: 1.2}, 100, A, {A: 1.2, B: 2.2}, 200),
        ({A: 0.84, B: 0.84}, 200, OFF, {A: 0.84, B: 2.0}, 600),  # nothing pays at first: only shadows look again
    ],
)
def test_it_follows_when_another_arm_becomes_the_better_one(
    seed: int, gains: dict[Arm, float], requests: int, best: Arm, changed: dict[Arm, float], later: int
) -> None:
    shared, rng = Record(0.9995), random.Random(seed)
    assert share(sequences(shared, gains, requests, rng)[requests // 2 :], best) > 0.8
    assert share(sequences(shared, changed, later, rng)[later // 2 :], B) > 0.8


@pytest.mark.parametrize("seed", range(3))
def test_where_nothing_pays_it_goes_off_and_goes_on_comparing(seed: int) -> None:
    shared, rng = Record(0.9995), random.Random(seed)
    taken = sequences(shared, {A: 0.84, B: 0.84}, 300, rng)
    assert share(taken[60:], OFF) > 0.75
    studied = shared.studied
    sequences(shared, {A: 0.84, B: 0.84}, 100, rng)
    assert shared.studied > studied
    assert {(A, OFF), (B, OFF)} <= shared.compared.keys()


def test_an_arm_that_was_not_used_for_long_is_tried_again() -> None:
    shared = Record(0.9995)
    for _ in range(100):
        shared.compare(A, OFF, 2.0)
        shared.compare(B, OFF, 1.2)
    bandits = [Bandit((A, B, OFF), shared, random.Random(seed)) for seed in range(100)]
    assert {bandit.arm for bandit in bandits} == {A}
    for _ in range(1500):
        shared.compare(A, OFF, 2.0)
    later = Counter(Bandit((A, B, OFF), shared, random.Random(seed)).arm for seed in range(100))
    assert 5 < later[B] < 50


def test_the_first_request_starts_with_the_default_and_others_know_what_was_learned() -> None:
    shared, rng = Record(0.9995), random.Random(0)
    assert {Bandit(ARMS, shared, random.Random(seed)).arm for seed in range(20)} == {A}
    sequences(shared, {A: 1.05, B: 2.2}, 60, rng)
    begun = Counter(Bandit((A, B, OFF), shared, random.Random(seed)).arm for seed in range(100))
    assert begun[B] > 85


def test_a_sequences_own_text_outweighs_what_others_had() -> None:
    shared = Record(0.9995)
    for _ in range(300):
        shared.compare(A, OFF, 2.5)
        shared.compare(B, OFF, 2.3)
    taken = []
    for seed in range(20):
        bandit = Bandit((A, B, OFF), Record(1.0, compared=shared.compared), random.Random(seed))
        assert bandit.arm == A
        taken.append(passes(bandit, {A: 1.0, B: 1.7}, 60, random.Random(seed))[20:])
    assert share(taken, B) > 0.7


def test_the_dice_decide_the_draws() -> None:
    runs = [
        passes(Bandit(ARMS, evenly(), random.Random(seed)), {A: 1.5, B: 1.4, C: 1.3}, 900, random.Random(0))
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def evenly(comparisons: int = 1) -> Record:
    """A record in which all arms are as good."""
    shared = Record(0.9995)
    for _ in range(comparisons):
        for arm in (A, B, C):
            shared.compare(arm, OFF, 2.0)
    return shared


def test_every_sequence_is_shadowed_by_another_arm_until_some_tens_were_compared_and_then_one_in_16() -> None:
    assert {Bandit((A, OFF), Record(1.0), random.Random(seed)).shadow() for seed in range(20)} == {None}
    shared = evenly()
    for _ in range(48):
        bandit = Bandit(ARMS, shared, random.Random(shared.studied))
        shadow = bandit.shadow()
        assert shadow not in (None, OFF, bandit.arm)
        bandit.compared(A, B, 1.1)
    for _ in range(10):
        bandit.compared(A, B, 1.1)
    later = [Bandit(ARMS, shared, random.Random(seed)).shadow() for seed in range(3000)]
    assert 140 < sum(arm is not None for arm in later) < 240


def test_the_shadow_is_drawn_as_the_arm_is() -> None:
    shared = evenly(60)
    for _ in range(60):
        shared.compare(C, OFF, 0.5)
    drawn = Counter(Bandit(ARMS, shared, random.Random(seed)).shadow() for seed in range(200))
    assert drawn[C] < 20
    assert min(drawn[A], drawn[B]) > 50


def test_an_arm_that_is_drawn_though_it_is_held_to_be_worse_is_compared_where_that_can_be_and_else_used() -> None:
    shared = Record(1.0, studied=1e3)
    for _ in range(40):
        shared.compare(A, OFF, 2.0)
        shared.compare(B, OFF, 1.96)  # worse, but not by a tenth
    drawn, used, shadows = Counter[Arm](), Counter[Arm](), Counter[Arm]()
    for seed in range(400):
        bandit = Bandit(ARMS, shared, random.Random(seed))
        drawn[bandit.arm] += 1
        shadow = bandit.shadow()
        used[bandit.arm] += 1
        assert bandit.next() == bandit.arm
        if shadow is not None:
            shadows[shadow] += 1
            assert shadow != bandit.arm
    assert drawn[B] > 50
    assert drawn[C] > 5  # of which nothing is known
    assert used.keys() == {A, B}
    assert used[B] == drawn[B]
    assert shadows[C] >= drawn[C]
    worthless = Record(1.0, studied=1e3)
    for _ in range(8):
        worthless.compare(A, OFF, 0.8)
    for seed in range(100):
        bandit = Bandit((A, OFF), worthless, random.Random(seed))
        drawn_arm, shadow = bandit.arm, bandit.shadow()
        assert (bandit.arm, shadow == A) == (OFF, drawn_arm == A or shadow == A)


def test_a_dropped_drafter_is_not_chosen_again() -> None:
    bandit = Bandit((C, Arm("draft", 2), A, OFF), Record(0.9995), random.Random(0))
    assert bandit.next() == C
    bandit.drop("draft")
    assert {bandit.next() for _ in range(500)} == {A}
    bandit.drop("lookahead")
    assert {bandit.next() for _ in range(500)} == {OFF}


def test_arms_are_as_deep_as_the_request_says() -> None:
    names = ("eagle3/cidv1:sha256:ab", "lookahead", "draft")
    assert [(arm.method, arm.k) for arm in arms_of(names, None)] == [
        ("eagle3", None), ("lookahead", None), ("draft", None), ("off", None),
    ]  # fmt: skip
    assert [arm.k for arm in arms_of(names, 3)] == [3, 3, 3, None]
