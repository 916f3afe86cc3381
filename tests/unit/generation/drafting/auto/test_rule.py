"""The numbers of the rule: what a pass is worth, what is counted, when an arm is left, how often others are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from services.generation.drafting.auto import bandit as rule
from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.draft import AutoDraft
from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.tally import Kind, Record, Tally
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Ask, Budget
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree

A, B, C = Arm("lookahead"), Arm("rest"), Arm("draft", 4)


def learned(**gains: float) -> Record:
    """A shared record by which arms have these gains, with priors of 1.5 and 1.2 that count for 8."""
    priors = {"A": (A, 1.5), "B": (B, 1.2), "C": (C, 1.2)}
    return Record(1.0, {
        priors[name][0]: Tally(92.0, 100 * gain - 8 * priors[name][1], 92.0, 1.0) for name, gain in gains.items()
    })  # fmt: skip


def test_a_gain_is_that_of_the_sequence_with_that_of_all_as_its_prior_and_an_expectation_below() -> None:
    shared = Record(0.998)
    bandit = Bandit((A, B, OFF), shared, 0)
    assert (bandit.gain(A), bandit.gain(B), bandit.gain(OFF)) == (1.5, 1.2, 1.0)
    shared.add(A, Tally(1.0, 4.0, 2.0, 1.0))
    assert bandit.gain(A) == pytest.approx((4 + 8 * 1.5) / (2 + 8))
    for _ in range(3):  # the first one is not counted
        assert bandit.next() == A
        bandit.saw(Tally(1.0, 3.0, 1.5, 1.0))
    of_all = ((4 * 0.998 + 3) * 0.998 + 3 + 8 * 1.5) / ((2 * 0.998 + 1.5) * 0.998 + 1.5 + 8)
    assert bandit.gain(A) == pytest.approx((3 * 0.97 + 3 + 8 * of_all) / (1.5 * 0.97 + 1.5 + 8))
    assert bandit.gain(OFF) == 1.0


@pytest.mark.parametrize(("other", "leaves"), [(1.99, False), (2.0, False), (2.05, False), (2.07, True)])
def test_an_arm_is_left_for_three_per_cent(monkeypatch: pytest.MonkeyPatch, other: float, leaves: bool) -> None:
    monkeypatch.setattr(rule, "_TRY", 0.0)
    bandit = Bandit((A, B, OFF), learned(A=2.0, B=other), 0)
    assert [bandit.next() for _ in range(2)] == [B if leaves else A] * 2
    bandit = Bandit((A, B, OFF), learned(A=0.98, B=0.5), 0)
    assert bandit.next() == A
    assert Bandit((A, B, OFF), learned(A=0.9, B=0.5), 0).next() == OFF


def test_a_try_is_four_passes_with_one_of_the_others_and_never_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "_TRY", 1.0)
    begun: Counter[Arm] = Counter()
    for seed in range(60):
        bandit = Bandit((A, B, C, OFF), learned(A=2.0, B=1.1, C=1.1), seed)
        arms = [bandit.next() for _ in range(4)]
        assert len(set(arms)) == 1
        begun[arms[0]] += 1
    assert begun.keys() == {B, C}
    assert min(begun.values()) > 15
    alone = Bandit((A, OFF), Record(1.0), 0)
    assert {alone.next() for _ in range(20)} == {A}


def test_a_try_begins_in_one_pass_of_sixty_four() -> None:
    passes = begun = 0
    for seed in range(12):
        bandit = Bandit((A, B, C, OFF), learned(A=9.0, B=1.1, C=1.1), seed)
        arms = [bandit.next() for _ in range(2000)]
        passes += arms.count(A)
        begun += sum(1 for arm, _ in groupby(arms) if arm != A)
    assert 1 / 80 < begun / passes < 1 / 52


def test_what_is_counted_of_a_try_is_all_but_its_first_pass_and_the_first_one_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared, seen = Record(1.0, {A: Tally(92.0, 888.0, 92.0, 1.0)}), Tally(1.0, 1.0, 1.0, 1.0)
    bandit = Bandit((A, B, OFF), shared, 0)

    def passes(count: int, chance: float) -> list[Arm]:
        monkeypatch.setattr(rule, "_TRY", chance)
        taken = []
        for _ in range(count):
            taken.append(bandit.next())
            bandit.saw(seen)
        return taken

    assert passes(3, 0.0) == [A] * 3
    assert shared.of(A).passes == 94.0
    assert passes(1, 1.0) + passes(3, 0.0) == [B] * 4
    assert shared.of(B).passes == 3.0
    assert passes(2, 0.0) == [A] * 2
    assert shared.of(A).passes == 95.0


def test_a_drafter_that_fails_in_a_try_or_in_use_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "_TRY", 1.0)
    bandit = Bandit((A, B, OFF), learned(A=2.0, B=1.1), 0)
    assert bandit.next() == B
    bandit.drop("rest")
    assert {bandit.next() for _ in range(5)} == {A}
    bandit.drop("lookahead")
    assert {bandit.next() for _ in range(5)} == {OFF}


def test_a_pass_costs_itself_its_rows_and_the_drafting_in_passes_without_drafts() -> None:
    shared = Record(1.0)
    bandit = Bandit((A, OFF), shared, 0)
    draft = AutoDraft(bandit, row_seconds=0.001)
    tree = TokenTree((5, 6, 7), (-1, 0, 1))
    logits = np.zeros((3, 8), np.float32)
    for _ in range(2):  # the first one is not counted
        draft.choose(breakeven=0.1)
        draft.drafting_seconds = 0.004
        draft.observe([5, 6, 9], tree, [0, 1], logits)
    assert shared.of(A).passes == 1.0
    assert shared.of(A).tokens == 2.0
    assert shared.of(A).cost == pytest.approx((0.010 + 2 * 0.001 + 0.004) / 0.010)
    assert shared.of(A).milliseconds == pytest.approx(16.0)
    draft.observe([5, 6, 9], tree, [0, 1], logits)  # nothing was asked for: a pass of the prompt
    assert shared.of(A).passes == 1.0


def test_an_arm_drafts_no_deeper_than_it_says() -> None:
    for arm, depth, expected in ((C, 9, 4), (C, 3, 3), (A, 9, 9)):
        draft = AutoDraft(Bandit((arm, OFF), Record(1.0), 0), 0.001)
        draft.choose(0.5)
        assert draft.budget(Ask(draft, [1], Budget(16, depth, 0.5))) == Budget(16, expected, 0.5)


class _Root:
    """Drafts nothing."""

    def begin(self, request: EngineRequest) -> _Root:
        return self

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        return TokenTree.root(tokens[-1])

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: object) -> None:
        pass


def test_sequences_that_are_drafted_for_together_share_the_time_and_the_record_fades() -> None:
    ticks = iter((1.0, 1.6))
    auto = AutoDrafter({"lookahead": _Root()}, PassCost(0.01, 0.001), 64, lambda: next(ticks))
    requests = [
        EngineRequest(f"r{n}", (1,), SamplingParams(seed=4, temperature=0.5), method="auto", arms=("lookahead",))
        for n in range(3)
    ]
    drafts: Sequence[AutoDraft] = [auto.begin(request) for request in requests]
    auto.propose_all([Ask(draft, [1], Budget(4, 4, 0.5)) for draft in drafts])
    assert [draft.drafting_seconds for draft in drafts] == pytest.approx([0.2] * 3)
    (record,) = auto.records.values()
    assert auto.records.keys() == {Kind(None, True)}
    for _ in range(2):
        record.add(A, Tally(1.0, 2.0, 1.0, 1.0))
    assert record.of(A).passes == pytest.approx(1.998)


def test_adapters_and_temperatures_have_records_of_their_own_and_seeds_draws_of_their_own() -> None:
    auto = AutoDrafter({"lookahead": _Root()}, PassCost(0.01, 0.001), 64)
    asked = EngineRequest("r", (1,), SamplingParams(seed=4), method="auto", arms=("lookahead",))
    first = auto.begin(asked)
    auto.begin(replace(asked, adapter="courteous"))
    auto.begin(replace(asked, sampling=SamplingParams(seed=4, temperature=0.1)))
    assert set(auto.records) == {Kind(None, False), Kind("courteous", False), Kind(None, True)}
    again, other = auto.begin(asked), auto.begin(replace(asked, sampling=SamplingParams(seed=5)))
    draws = [[draft._bandit._dice.random() for _ in range(4)] for draft in (first, again, other)]
    assert draws[0] == draws[1] != draws[2]
