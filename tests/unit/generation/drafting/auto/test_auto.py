"""Methods that take turns inside a request: no token changes, each reads what it needs, a broken one is left out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.generation.drafting.auto import bandit, drafter
from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.belief import Beliefs
from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.tally import Kind, Record
from services.generation.drafting.draft_model import DraftModelDrafter
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.rest import RestDrafter
from services.generation.engine.cost import PassCost
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.settings import EngineSettings
from services.generation.engine.speculation import AnyDrafter
from services.generation.target.cpu import CpuTarget
from services.generation.target.loading import load_target
from tests.fakes.drafters import LyingDrafter
from tests.fakes.engine_runs import CHEAP_ROWS, run
from tests.fakes.heads import InformedDrafter, eagle3
from tests.unit.generation.engine.test_identity import alone, parameters, signature

NAMES = ("eagle3/one", "eagle3/two", "lookahead", "rest", "draft", "lying")
Truth = dict[tuple[str, int], tuple[int, ...]]

battery = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def drafting(tiny_model: Path) -> CpuTarget:
    """A second copy of the tiny model: a draft model that is right."""
    return load_target(tiny_model, cache_tokens=40 * 64)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandit, "_TRY", 0.5)
    monkeypatch.setattr(bandit, "_TRY_PASSES", 2)
    monkeypatch.setattr(bandit, "_SETTLED", 2)


def auto_of(drafters: Mapping[str, AnyDrafter], target: CpuTarget) -> dict[str, AnyDrafter]:
    ticks = iter(range(10**9))
    auto = AutoDrafter(drafters, CHEAP_ROWS, target.config.hidden_size, lambda: 1e-4 * next(ticks))
    return {**drafters, "auto": auto}


def drafters_of(target: CpuTarget, drafting: CpuTarget, seed: int, truth: Truth) -> dict[str, AnyDrafter]:
    heads = {
        "eagle3/one": InformedDrafter(eagle3(target, CHEAP_ROWS, seed=seed), seed, truth, bugs=0.02 * (seed % 2)),
        "eagle3/two": InformedDrafter(eagle3(target, CHEAP_ROWS, feature_layers=(1, 1, 0)), seed, truth),
    }
    return {
        **heads,
        "lookahead": LookaheadDrafter(CHEAP_ROWS),
        "rest": RestDrafter({}),
        "draft": DraftModelDrafter(drafting, 384, CHEAP_ROWS, PassCost(0.01, 0.001)),
        "lying": LyingDrafter(seed, 384, truth, bugs=0.02),
    }


def requests_of(rng: random.Random, count: int) -> list[EngineRequest]:
    requests = []
    for number in range(count):
        unit = [rng.randrange(384) for _ in range(rng.randrange(1, 9))]
        length = rng.choice((1, 2, 40, 63, 64, 65, 130))
        arms = tuple(rng.sample(NAMES, rng.randrange(1, len(NAMES) + 1)))
        requests.append(
            EngineRequest(
                f"r{number}", tuple((unit * length)[:length]), parameters(rng), rng.randrange(3),
                method=rng.choice(("auto", "auto", "draft", "off")), arms=arms, k=rng.choice((None, None, 3)),
            )
        )  # fmt: skip
    return requests


@given(seed=st.integers(0, 2**32))
@battery
def test_no_change_of_method_changes_a_token(
    target: CpuTarget,
    cramped_target: CpuTarget,
    drafting: CpuTarget,
    restless: None,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    rng = random.Random(seed)
    requests = requests_of(rng, rng.randrange(1, 6))
    expected = {request.key: alone(target, request) for request in requests}
    schedule = EngineSettings(
        max_sequences=rng.choice((1, 2, 8)), max_rows=rng.choice((8, 17, 256)), prefill_rows=rng.choice((1, 7, 64))
    )
    serving = rng.choice((target, cramped_target))
    truth = {key: tokens for key, (tokens, *_) in expected.items()}
    drafters = auto_of(drafters_of(serving, drafting, seed, truth), serving)
    if rng.random() < 0.5:  # shadows from the first request on, and for long
        drafters["auto"]._used |= set(NAMES)  # type: ignore[union-attr]
        monkeypatch.setattr(bandit, "_TRY", 0.0)
    else:
        monkeypatch.setattr(bandit, "_TRY", 0.5)
    monkeypatch.setattr(drafter, "_LONG_ONES", rng.choice((0.0, 2.0)))  # all, or none
    arrivals = [rng.randrange(20) for _ in requests]
    collected = run(serving, requests, drafters=drafters, settings=schedule, arrivals=arrivals)
    for request in requests:
        assert signature(collected, request) == expected[request.key], (request, schedule)
        metrics = collected.outcomes[request.key].metrics
        assert sum(count for _, count in metrics.passes_by_method) == metrics.target_passes
    assert drafting.blocks.used == 0
    heads = [each._drafter for each in drafters.values() if isinstance(each, InformedDrafter)]
    assert all(head._pass.blocks.used == 0 for head in heads)


def asking(arms: tuple[str, ...], tokens: int = 100, **members: object) -> EngineRequest:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.7, seed=4)
    return EngineRequest("r", tuple(range(70)), sampling, method="auto", arms=arms, **members)  # type: ignore[arg-type]


def test_methods_take_turns_inside_a_request(
    target: CpuTarget, drafting: CpuTarget, restless: None, caplog: pytest.LogCaptureFixture
) -> None:
    request = asking(NAMES[:5], tokens=200)
    expected = alone(target, request)
    drafters = auto_of(drafters_of(target, drafting, 0, {request.key: expected[0]}), target)
    collected = run(target, [request], drafters=drafters)
    assert signature(collected, request) == expected
    shares = dict(collected.outcomes[request.key].metrics.passes_by_method)
    assert shares["eagle3"] > 0
    assert shares["draft"] > 0
    assert not caplog.records


def test_it_leaves_a_head_of_noise_for_a_draft_model_that_is_right(target: CpuTarget, drafting: CpuTarget) -> None:
    drafters = drafters_of(target, drafting, 0, {})
    drafters["eagle3/one"] = eagle3(target, CHEAP_ROWS)
    drafters = auto_of(drafters, target)
    requests = [
        EngineRequest(
            f"r{n}", (n, 5, 9), SamplingParams(max_tokens=120, ignore_eos=True), method="auto",
            arms=("eagle3/one", "draft"),
        )
        for n in range(4)
    ]  # fmt: skip
    passes = []
    for request in requests:
        outcome = run(target, [request], drafters=drafters).outcomes[request.key]
        assert outcome.token_ids == alone(target, request)[0]
        passes.append(outcome.metrics.target_passes)
    auto = drafters["auto"]
    assert isinstance(auto, AutoDrafter)
    tallies = auto.records[Kind(None, False)].tallies
    best = max(tallies, key=lambda arm: tallies[arm].gain(1.2, 8.0))
    assert best.drafter == "draft"
    assert passes[-1] < 50


def test_a_method_that_breaks_is_left_out_and_the_others_go_on(
    target: CpuTarget, drafting: CpuTarget, restless: None, caplog: pytest.LogCaptureFixture
) -> None:
    request = asking(("eagle3/one", "lying", "draft"))
    expected = alone(target, request)
    drafters = drafters_of(target, drafting, 0, {})
    broken = eagle3(target, CHEAP_ROWS)
    broken._grow = None  # type: ignore[assignment, method-assign]
    drafters |= {"eagle3/one": broken, "lying": LyingDrafter(0, 384, bugs=1.0)}
    collected = run(target, [request], drafters=auto_of(drafters, target))
    assert signature(collected, request) == expected
    shares = dict(collected.outcomes[request.key].metrics.passes_by_method)
    assert shares.keys() <= {"draft", "off"}
    assert shares["draft"] > 10
    assert "eagle3/one failed" in caplog.text
    assert broken._pass.blocks.used == 0


def test_one_sequence_at_fault_does_not_cost_the_others_their_method(
    target: CpuTarget, drafting: CpuTarget, caplog: pytest.LogCaptureFixture
) -> None:
    model = DraftModelDrafter(drafting, 384, CHEAP_ROWS, PassCost(0.01, 0.001))
    propose = model.propose_all

    def fails_for_one(asks):  # type: ignore[no-untyped-def]
        if any(ask.tokens[0] == 1 for ask in asks):
            raise RuntimeError("a drafter's bug")
        return propose(asks)

    model.propose_all = fails_for_one  # type: ignore[method-assign]
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    requests = [EngineRequest(f"r{n}", (n, 7), sampling, method="auto", arms=("draft",)) for n in range(3)]
    collected = run(target, requests, drafters=auto_of({"draft": model}, target))
    drafted = [collected.outcomes[request.key].metrics.num_drafts for request in requests]
    assert [signature(collected, request) for request in requests] == [alone(target, request) for request in requests]
    assert drafted[1] == 0
    assert drafted[0] > 0 < drafted[2]


def test_requests_share_what_was_learned_by_adapter_and_by_temperature(target: CpuTarget, drafting: CpuTarget) -> None:
    drafters = auto_of(drafters_of(target, drafting, 0, {}), target)
    auto = drafters["auto"]
    assert isinstance(auto, AutoDrafter)
    run(target, [asking(("lookahead", "draft"), k=3)], drafters=drafters)
    record = auto.records[Kind(None, True)]
    assert {arm.k for arm in record.tallies if arm.drafter != "off"} == {3}
    assert Kind(None, False) not in auto.records


def test_the_record_holds_every_pass_that_was_asked_for_the_last_one_too(
    target: CpuTarget, drafting: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter, "_MEMORY", 1.0)
    drafters = auto_of(drafters_of(target, drafting, 0, {}), target)
    auto = drafters["auto"]
    assert isinstance(auto, AutoDrafter)
    run(target, [asking(("draft",))], drafters=drafters)  # a drafter's first draft does not count
    for tokens in range(60, 70):  # one that lacks a single token is not asked what to draft
        auto.records.clear()
        request = asking(("draft",), tokens)
        run(target, [request], drafters=drafters)
        seen = auto.records[Kind(None, True)].tallies.values()
        assert tokens - 2 <= sum(tally.tokens for tally in seen) <= tokens - 1  # the prompt's pass emits one, too


def layers_of(request: EngineRequest, target: CpuTarget, drafting: CpuTarget, record: Record) -> tuple[int, ...]:
    """Those that are captured for a request by this record; without them it has no head to ask."""
    auto = auto_of(drafters_of(target, drafting, 0, {}), target)["auto"]
    assert isinstance(auto, AutoDrafter)
    auto.records[Kind(None, True)] = record
    draft = auto.begin(request)
    assert (draft.shadow is not None) == (record.studied == 0.0)
    heads = {name for name in request.arms if name.startswith("eagle3")}
    assert {arm.drafter for arm in draft._bandit._arms} & heads == (heads if draft.feature_layers else set())
    assert draft.drafts._reading.keys() & heads == (heads if draft.feature_layers else set())
    return draft.feature_layers


def comparing(gain: float, *, studied: float = 1e3) -> Record:
    """The head is so many times as fast as without drafts, the draft model twice; hardly any request was long."""
    record = Record(1.0, studied=studied)
    for _ in range(400):
        record.compare(Arm("eagle3/one"), OFF, gain)
        record.compare(Arm("draft"), OFF, 2.0)
        record.begin()
    return record


def test_features_are_captured_where_a_head_may_be_wanted(
    target: CpuTarget, drafting: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandit, "_SHADOWED", 0.0)
    heads = drafters_of(target, drafting, 0, {})["eagle3/one"].feature_layers  # type: ignore[union-attr]
    request = asking(("eagle3/one", "draft"))
    assert layers_of(request, target, drafting, comparing(1.2)) == ()
    assert layers_of(request, target, drafting, comparing(2.5))[: len(heads)] == heads
    using_its_draw = replace(request, window=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Beliefs, "drawn", lambda *_: Arm("draft"))
        assert layers_of(using_its_draw, target, drafting, comparing(2.5))[: len(heads)] == heads  # a change is near
        assert layers_of(using_its_draw, target, drafting, comparing(2.1)) == ()
    assert layers_of(request, target, drafting, comparing(1.2, studied=0.0))[: len(heads)] == heads  # in the shadow
    often_long = comparing(1.2)
    for _ in range(6):
        often_long.lasts()
    assert layers_of(request, target, drafting, often_long)[: len(heads)] == heads
    assert layers_of(replace(request, arms=("draft",)), target, drafting, Record(1.0, studied=1e3)) == ()


def test_how_many_requests_are_long_is_measured(target: CpuTarget, drafting: CpuTarget) -> None:
    drafters = auto_of(drafters_of(target, drafting, 0, {}), target)
    auto = drafters["auto"]
    assert isinstance(auto, AutoDrafter)
    for _ in range(40):
        run(target, [asking(("rest",), tokens=5)], drafters=drafters)
    record = auto.records[Kind(None, True)]
    assert record.long < 0.25
    for _ in range(40):
        run(target, [asking(("rest",), tokens=80)], drafters=drafters)
    assert record.long > 0.75


def test_where_no_head_can_be_asked_the_target_captures_nothing(
    target: CpuTarget, drafting: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandit, "_SHADOWED", 0.0)
    drafters = auto_of(drafters_of(target, drafting, 0, {}), target)
    auto = drafters["auto"]
    assert isinstance(auto, AutoDrafter)
    auto.records[Kind(None, True)] = comparing(1.2)
    asked, forward = set(), target.forward
    monkeypatch.setattr(target, "forward", lambda rows, layers=(): (asked.add(layers), forward(rows, layers))[1])
    request = asking(("eagle3/one", "draft"))
    collected = run(target, [request], drafters=drafters)
    assert signature(collected, request) == alone(target, request)
    assert asked == {()}


def test_a_head_that_is_never_chosen_computes_nothing(
    target: CpuTarget, drafting: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandit, "_TRY", 0.0)
    drafters = drafters_of(target, drafting, 0, {})
    head = eagle3(target, CHEAP_ROWS)
    monkeypatch.setattr(head, "begin", None)  # asked for nothing, it cannot fail
    request = asking(("draft", "eagle3/one"), tokens=60)
    collected = run(target, [request], drafters=auto_of({**drafters, "eagle3/one": head}, target))
    assert signature(collected, request) == alone(target, request)
    assert dict(collected.outcomes[request.key].metrics.passes_by_method).keys() <= {"draft", "off"}
