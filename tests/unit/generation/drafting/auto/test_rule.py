"""The numbers of the rule: what a pass is worth, what is counted, when an arm is left, how often others are tried."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from services.generation.drafting.auto import bandit as rule
from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.belief import Evidence
from services.generation.drafting.auto.draft import AutoDraft, Drafted
from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.drafts import Drafts
from services.generation.drafting.auto.pace import Step, Timed
from services.generation.drafting.auto.price import Price
from services.generation.drafting.auto.tally import Kind, Record, Tally
from services.generation.engine.cost import PassCost
from services.generation.engine.drafter import Ask, Budget
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree

A, B, C = Arm("lookahead"), Arm("rest"), Arm("draft", 4)


def learned(**gains: float) -> Record:
    """A shared record by which arms have these gains, for sure."""
    arms = {"A": A, "B": B, "C": C}
    sure = {arms[name]: Evidence(1e9, 1e9 * math.log(gain), 1e9 * math.log(gain) ** 2) for name, gain in gains.items()}
    return Record(1.0, compared={(arm, OFF): evidence for arm, evidence in sure.items()})


def bandit_of(arms: tuple[Arm, ...], shared: Record, seed: int = 0) -> Bandit:
    return Bandit(arms, shared, random.Random(seed))


def test_the_gain_in_a_sequence_is_its_own_with_that_of_all_as_its_prior() -> None:
    shared = learned(A=2.5, B=1.6)
    bandit = bandit_of((A, B, OFF), shared)
    for _ in range(2):
        assert bandit.next() == A
        bandit.saw(Tally(1.0, 1.5, 1.5, 1.0))
    own = (1.5 * 0.97 + 1.5 + 8 * 2.5) / (1.5 * 0.97 + 1.5 + 8)
    assert bandit.gain(A) == pytest.approx(own)
    assert bandit.gain(B) == pytest.approx(1.6 * math.sqrt(own / 2.5))
    assert bandit.gain(OFF) == 1.0


@pytest.mark.parametrize(("own", "leaves"), [(1.5, False), (1.35, False), (1.2, True)])
def test_an_arm_is_left_after_every_eighth_pass_for_one_that_is_a_tenth_better(own: float, leaves: bool) -> None:
    """Own text counts for all here, and B is known to bring 1.6 times the usual in a text where A brings the usual."""
    bandit = bandit_of((A, B, OFF), learned(A=1.5, B=1.49))
    taken = []
    for _ in range(10):
        taken.append(bandit.next())
        bandit.saw(Tally(1.0, 1000 * own, 1000.0, 1.0))
    assert taken == [A] * 8 + [B if leaves else A] * 2


def test_where_the_text_is_too_hard_for_any_arm_it_goes_off() -> None:
    bandit = bandit_of((A, OFF), learned(A=1.2))
    taken = []
    for _ in range(9):
        taken.append(bandit.next())
        bandit.saw(Tally(1.0, 600.0, 1000.0, 1.0))
    assert taken == [A] * 8 + [OFF]


def test_a_try_is_four_passes_with_one_of_the_others_and_never_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "_TRY", 1.0)
    monkeypatch.setattr(rule, "_SETTLED", 0)
    begun: Counter[Arm] = Counter()
    for seed in range(60):
        shared = learned(A=2.0)
        for arm in (B, C):
            shared.compare(arm, A, 0.5)
        bandit = bandit_of((A, B, C, OFF), shared, seed)
        arms = [bandit.next() for _ in range(4)]
        assert len(set(arms)) == 1
        begun[arms[0]] += 1
    assert begun.keys() == {B, C}
    assert min(begun.values()) > 15
    alone = bandit_of((A, OFF), Record(1.0))
    assert {alone.next() for _ in range(20)} == {A}


def test_one_turn_of_eight_is_a_try_after_the_first_sixty_four_passes() -> None:
    turns = tries = 0
    for seed in range(12):
        bandit = bandit_of((A, B, C, OFF), learned(A=9.0, B=1.1, C=1.1), seed)
        assert {bandit.next() for _ in range(64)} == {A}
        arms = [bandit.next() for _ in range(2000)]
        turns += arms.count(A) / 8
        tries += sum(arm != A for arm in arms) / 4
    assert 1 / 10 < tries / (tries + turns) < 1 / 6.5


def test_what_is_counted_is_all_but_the_first_pass_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "_SETTLED", 0)
    monkeypatch.setattr(rule, "_TURN", 3)
    shared, seen = learned(A=9.0, B=1.0), Tally(1.0, 1.0, 1.0, 1.0)
    bandit = bandit_of((A, B, OFF), shared)

    def told(arm: Arm) -> float:
        return shared.tallies.get(arm, Tally()).passes

    def passes(count: int, chance: float) -> list[Arm]:
        monkeypatch.setattr(rule, "_TRY", chance)
        taken = []
        for _ in range(count):
            taken.append(bandit.next())
            bandit.saw(seen)
        return taken

    assert passes(3, 0.0) == [A] * 3
    assert told(A) == 0.0  # not yet
    assert passes(1, 1.0) + passes(3, 0.0) == [B] * 4
    assert told(A) == 3.0
    assert passes(2, 0.0) == [A] * 2
    assert told(B) == 3.0
    bandit.tell()
    assert told(A) == 4.0
    passes(64, 0.0)
    assert told(A) == 68.0  # in time, of a sequence that goes on


def test_with_every_pass_of_any_arm_all_of_them_fade() -> None:
    record = Record(0.5, {A: Tally(4.0, 8.0, 4.0, 2.0), B: Tally(0.012, 1.0, 1.0, 1.0)})
    record.add(A, Tally(2.0, 6.0, 3.0, 10.0))
    assert record.tallies == {A: Tally(3.0, 8.0, 4.0, 10.5)}  # the other is forgotten


def test_with_every_comparison_the_earlier_ones_fade() -> None:
    record = Record(1.0, compared={(A, OFF): Evidence(2.0, 1.0, 0.5), (B, OFF): Evidence(0.01, 0.0, 0.0)})
    record.compare(B, A, math.e)
    assert record.compared == {(A, OFF): Evidence(2 * 0.99, 0.99, 0.5 * 0.99), (B, A): Evidence(1.0, 1.0, 1.0)}


def test_no_comparison_says_more_than_a_thousandfold() -> None:
    record = Record(1.0)
    record.compare(B, OFF, 1e-9)
    assert record.compared[B, OFF] == pytest.approx((1.0, -math.log(1000), math.log(1000) ** 2))


def test_a_stay_is_one_comparison_however_long_it_is_and_time_goes_by_without_drafts_too() -> None:
    shared = Record(1.0)
    bandit = bandit_of((A, OFF), shared)
    for _ in range(200):
        assert bandit.next() == A
        bandit.saw(Tally(1.0, 2.0, 1.0, 1.0))
    assert shared.tallies[A].passes == 192.0
    assert not shared.compared
    bandit.tell()
    assert shared.compared[A, OFF] == pytest.approx((1.0, math.log(2), math.log(2) ** 2))
    off = bandit_of((OFF,), shared)
    off.next()
    off.saw(Tally(1.0, 1.0, 1.0, 1.0))
    off.tell()
    assert shared.compared[A, OFF].weight == pytest.approx(0.99)


def test_a_drafter_that_fails_in_a_try_or_in_use_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "_TRY", 1.0)
    monkeypatch.setattr(rule, "_SETTLED", 0)
    bandit = bandit_of((A, B, OFF), learned(A=2.0, B=1.1))
    assert bandit.next() == B
    bandit.drop("rest")
    assert {bandit.next() for _ in range(5)} == {A}
    bandit.drop("lookahead")
    assert {bandit.next() for _ in range(5)} == {OFF}


def priced(drafter: str, budget: Budget, drafting: float) -> Price:
    return Price(0.001 / budget.breakeven, 0.001, drafting=drafting)


def draft_of(
    *arms: Arm, shared: Record | None = None, timed: Callable[[str, Sequence[Timed]], None] = lambda *_: None
) -> AutoDraft:
    bandit = bandit_of(arms, shared or Record(1.0))
    drafts = Drafts({arm.drafter: _Root for arm in arms if arm != OFF}, {}, bandit.drop)
    return AutoDraft(bandit, priced, drafts, timed)


@pytest.mark.parametrize("seconds", [0.002, 0.004])
def test_a_pass_costs_itself_its_rows_and_the_drafting_in_passes_without_drafts(seconds: float) -> None:
    shared = Record(1.0)
    draft = draft_of(A, OFF, shared=shared)
    tree = TokenTree((5, 6, 7), (-1, 0, 1))
    logits = np.zeros((3, 8), np.float32)

    def drafts(seconds: float) -> None:
        draft.choose()
        draft.drafted(tree, Drafted(Budget(4, 4, 0.1), Step(1.0, 1), seconds))

    drafts(seconds)
    draft.observe([5, 6, 9], tree, [0, 1], logits)
    draft.observe([5, 6, 9], tree, [0, 1], logits)  # nothing was asked for: a pass of the prompt
    drafts(0.0)
    draft.ended([5, 6, 9, 1], TokenTree.root(9), [0])  # nobody observes the last one
    draft.release()
    assert shared.tallies[A].passes == 2.0
    assert shared.tallies[A].tokens == 3.0
    assert shared.tallies[A].cost == pytest.approx((0.010 + 2 * 0.001 + seconds) / 0.010 + 1.0)
    assert shared.tallies[A].milliseconds == pytest.approx(22.0 + 1e3 * seconds)
    draft.release()
    assert shared.tallies[A].passes == 2.0


def test_what_a_turn_brought_is_told_of_the_arm_that_had_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "_TURN", 2)
    shared = learned(A=1.5, B=1.49)
    draft = draft_of(A, B, OFF, shared=shared)
    taken = []
    for _ in range(5):
        taken.append(draft.choose())
        draft.drafted(TokenTree.root(9), Drafted(Budget(4, 4, 0.1), Step(1.0, 1), 0.5))  # very slow
        draft.observe([9, 1], TokenTree.root(9), [0], np.zeros((1, 8), np.float32))
    draft.release()
    assert taken == [A, A, taken[2], taken[2], taken[4]]
    assert taken[2] != A
    assert shared.tallies[A].passes == 2.0
    assert shared.tallies[taken[2]].passes == 2.0 if taken[4] == taken[2] else 1.0  # but for the first one of an arm


def test_passes_with_one_between_them_that_does_not_count_are_not_paced_together() -> None:
    paced: list[int] = []
    draft = draft_of(A, OFF, timed=lambda drafter, passes: paced.append(len(passes)))
    for counts in (True, True, False, True):
        draft.choose()
        draft.drafted(TokenTree.root(9), Drafted(Budget(4, 4, 0.1), Step(1.0, 1), 0.0) if counts else None)
        draft.observe([9, 1], TokenTree.root(9), [0], np.zeros((1, 8), np.float32))
    draft.release()
    assert [length for length in paced if length] == [2, 1]


def test_an_arm_drafts_no_deeper_than_it_says() -> None:
    for arm, depth, expected in ((C, 9, 4), (C, 3, 3), (A, 9, 9)):
        draft = draft_of(arm, OFF)
        draft.choose()
        assert draft.budget(Ask(draft, [1], Budget(16, depth, 0.5))) == Budget(16, expected, 0.5)


class _Root:
    """Drafts nothing."""

    def begin(self, request: EngineRequest) -> _Root:
        return self

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        return TokenTree.root(tokens[-1])

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: object) -> None:
        pass


def test_sequences_that_are_drafted_for_together_share_the_time_and_a_drafter_s_first_draft_does_not_count() -> None:
    ticks = iter((0.0, 0.0, 90.0, 90.0, 91.0, 91.6))
    auto = AutoDrafter({"lookahead": _Root()}, PassCost(0.01, 0.001), 64, lambda: next(ticks))
    requests = [
        EngineRequest(f"r{n}", (1,), SamplingParams(seed=4, temperature=0.5), method="auto", arms=("lookahead",))
        for n in range(3)
    ]
    drafts: Sequence[AutoDraft] = [auto.begin(request) for request in requests]
    for _ in range(2):
        (*_, tree) = auto.propose_all([Ask(draft, [1], Budget(4, 4, 0.5)) for draft in drafts])
        for draft in drafts:
            draft.observe([1, 2], tree, [0], np.zeros((1, 8), np.float32))
    for draft in drafts:
        draft.release()
    (seen,) = auto.records[Kind(None, True)].tallies.values()
    assert seen.passes == pytest.approx(3.0, rel=0.01)
    assert seen.milliseconds == pytest.approx(3 * (0.001 / 0.5 + 0.2) * 1e3, rel=0.01)


class Steps:
    """An engine's steps on a clock of their own. Of a pass without a draft 10 ms are modelled."""

    def __init__(self) -> None:
        self.now = 0.0
        self.auto = AutoDrafter({"lookahead": _Root(), "rest": _Root()}, PassCost(0.009, 0.001), 64, lambda: self.now)
        self.auto._used |= {"lookahead", "rest"}

    def serve(self, adapter: str, seconds: float, *arms: str | None) -> None:
        """A sequence beside each other for each arm, the first ones of their kind, through steps that take so long;
        None is one that somebody else drafts for.
        """
        requests = [
            EngineRequest(f"r{n}", (1,), SamplingParams(), method="auto", adapter=f"{adapter}{n}", arms=(arm,))
            for n, arm in enumerate(arms)
            if arm is not None
        ]
        drafts = [self.auto.begin(request) for request in requests]
        for _ in range(480):
            trees = self.auto.propose_all([Ask(draft, [1], Budget(4, 4, 0.1, len(arms))) for draft in drafts])
            self.now += seconds
            for draft, tree in zip(drafts, trees, strict=True):
                draft.observe([1, 2], tree, [0], np.zeros((1, 8), np.float32))
        for draft in drafts:
            draft.release()


def test_what_a_drafter_s_passes_take_beyond_their_model_is_charged_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "_MARGIN", 10.0**9)
    monkeypatch.setattr(rule, "_TRY", 0.0)
    steps = Steps()
    steps.serve("a", 0.012, "lookahead")
    steps.serve("b", 0.018, "rest")
    for name in "cdefgh":
        steps.serve(name, 0.012, "lookahead")
        steps.serve(name * 2, 0.018, "rest")
    pace, kind = steps.auto._pace, Kind("hh0", False)
    assert pace.of(kind, "rest") == pytest.approx(1.8, rel=0.05)
    assert pace.of(Kind("h0", False), "lookahead") < 1.4
    seen = steps.auto.records[kind].tallies[Arm("rest")]
    assert seen.milliseconds / seen.passes == pytest.approx(18.0, rel=0.1)
    assert seen.cost / seen.passes == pytest.approx(1.8 / pace.of(kind, OFF.drafter), rel=0.15)


@pytest.mark.parametrize("arms", [("lookahead", "rest"), ("lookahead", None)])
def test_steps_with_several_drafters_or_other_sequences_are_charged_to_nobody(
    monkeypatch: pytest.MonkeyPatch, arms: tuple[str | None, ...]
) -> None:
    monkeypatch.setattr(rule, "_MARGIN", 10.0**9)
    monkeypatch.setattr(rule, "_TRY", 0.0)
    steps = Steps()
    steps.serve("a", 0.030, *arms)
    assert steps.auto._pace.of(Kind("a0", False), "lookahead") == pytest.approx(1.5)
    assert steps.auto._pace._own == {}


def test_a_drafter_that_fails_has_not_been_used_yet(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(_Root):
        def begin(self, request: EngineRequest) -> _Root:
            raise RuntimeError("no")

    auto = AutoDrafter({"lookahead": Failing()}, PassCost(0.01, 0.001), 64)
    asked = EngineRequest("r", (1,), SamplingParams(seed=4), method="auto", arms=("lookahead",))
    draft = auto.begin(asked)
    assert auto.propose_all([Ask(draft, [1], Budget(4, 4, 0.5))]) == [TokenTree.root(1)]
    assert "lookahead" not in auto._used
    assert "lookahead failed" in caplog.text


def test_a_sequence_that_goes_on_after_32_passes_is_a_long_one() -> None:
    shared = learned(A=2.0)
    shared.long = 0.0
    bandit = bandit_of((A, OFF), shared)
    for _ in range(32):
        bandit.next()
    assert shared.long == 0.0
    for _ in range(64):
        bandit.next()
    assert shared.long == 0.05
    dropping = bandit_of((A, B, C, OFF), shared)
    for drafter in ("lookahead", "rest", "draft"):
        dropping.next()
        dropping.drop(drafter)
    dropping.next()
    assert shared.long == 0.05


def test_a_record_belongs_to_an_adapter_a_temperature_and_a_kind_of_text() -> None:
    auto = AutoDrafter({"lookahead": _Root()}, PassCost(0.01, 0.001), 64, resembles=lambda prompt: f"like {prompt[0]}")
    asked = EngineRequest("r", (1,), SamplingParams(seed=4), method="auto", arms=("lookahead",))
    auto.begin(asked)
    auto.begin(replace(asked, adapter="courteous"))
    auto.begin(replace(asked, sampling=SamplingParams(seed=4, temperature=0.1)))
    auto.begin(replace(asked, prompt=(7,)))
    assert set(auto.records) == {
        Kind(None, False, "like 1"), Kind("courteous", False, "like 1"), Kind(None, True, "like 1"),
        Kind(None, False, "like 7"),
    }  # fmt: skip


def test_requests_with_the_same_seed_draw_differently_and_the_same_traffic_draws_the_same() -> None:
    asked = EngineRequest("r", (1,), SamplingParams(seed=4), method="auto", arms=("lookahead",))
    other = replace(asked, sampling=SamplingParams(seed=5))

    def draws(*requests: EngineRequest) -> list[float]:
        auto = AutoDrafter({"lookahead": _Root()}, PassCost(0.01, 0.001), 64)
        return [auto.begin(request)._bandit._dice.random() for request in requests]

    assert draws(asked, asked, other) == draws(asked, asked, other)
    assert len(set(draws(asked, asked, replace(asked, choice=1)))) == 3
    assert draws(other)[0] != draws(asked)[0]
