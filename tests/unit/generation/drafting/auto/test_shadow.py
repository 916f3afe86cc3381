"""A shadow sees exactly what its arm would have brought, and costs its sequence nothing but time."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.generation.drafting.auto import bandit
from services.generation.drafting.auto.arm import OFF, Arm
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.drafter import AutoDrafter
from services.generation.drafting.auto.pace import Pace
from services.generation.drafting.auto.shadow import Shadow
from services.generation.drafting.auto.tally import Kind, Record, Tally
from services.generation.engine.drafter import Budget
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.cpu import CpuTarget
from tests.fakes.engine_runs import CHEAP_ROWS, run
from tests.fakes.heads import eagle3
from tests.unit.generation.engine.test_identity import alone, signature

HOST, OTHER = Arm("host"), Arm("other")


class Knowing:
    """Drafts what the request emits, a token wrong here and there: which, the place decides."""

    def __init__(self, truth: tuple[int, ...], seed: int, depth: int, right: float) -> None:
        self._truth, self._seed, self._depth, self._right = truth, seed, depth, right
        self.watched: list[list[int]] = []

    def begin(self, request: EngineRequest) -> Knowing:
        self._prompt = len(request.prompt)
        return self

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        at = len(tokens) - self._prompt
        chain = list(self._truth[at : at + min(self._depth, budget.depth, budget.nodes)])
        for place in range(len(chain)):
            if random.Random(f"{self._seed} {at + place}").random() > self._right:
                chain[place] = (chain[place] + 1) % 384
        return TokenTree.chain([tokens[-1], *chain])

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: NDArray[np.float32]) -> None:
        self.watched.append(list(tokens))


def asking(tokens: int = 60, arms: tuple[str, ...] = ("host", "other")) -> EngineRequest:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.7, seed=4)
    return EngineRequest("r", tuple(range(20)), sampling, method="auto", arms=arms)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes after drafts of other take half as long again as modelled, and no request changes its arm inside."""
    monkeypatch.setattr(Pace, "of", lambda _, kind, drafter: 1.5 if drafter == "other" else 1.0)
    monkeypatch.setattr(bandit, "_MARGIN", 10.0**9)
    monkeypatch.setattr(bandit, "_TRY", 0.0)


def auto_of(target: CpuTarget, **drafters: object) -> AutoDrafter:
    ticks: Iterator[int] = iter(range(10**9))
    auto = AutoDrafter(drafters, CHEAP_ROWS, target.config.hidden_size, lambda: 1e-3 * next(ticks))  # type: ignore[arg-type]
    auto._used |= drafters.keys()  # nothing is compiled here
    return auto


@given(seed=st.integers(0, 2**32), tokens=st.integers(2, 90), depths=st.tuples(st.integers(1, 6), st.integers(1, 6)))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_shadow_sees_what_its_arm_brings_where_it_is_in_use(
    target: CpuTarget, steady: None, seed: int, tokens: int, depths: tuple[int, int]
) -> None:
    request = asking(tokens)
    truth = alone(target, request)[0]
    shares = [random.Random(seed + n).uniform(0.2, 1.0) for n in range(2)]

    def drafters() -> dict[str, Knowing]:
        names = ("host", "other")
        return {name: Knowing(truth, seed + n, depths[n], shares[n]) for n, name in enumerate(names)}

    shadows: list[Shadow] = []
    in_use: list[Tally] = []
    with pytest.MonkeyPatch.context() as patch:
        begin = Shadow.__init__
        patch.setattr(Shadow, "__init__", lambda self, *each: (begin(self, *each), shadows.append(self))[0])
        auto = auto_of(target, **drafters())
        collected = run(target, [request], drafters={"auto": auto})  # type: ignore[dict-item]
        assert signature(collected, request)[0] == truth
        saw = Bandit.saw
        patch.setattr(Bandit, "saw", lambda self, seen: (in_use.append(seen), saw(self, seen))[0])
        run(target, [asking(tokens, ("other",))], drafters={"auto": auto_of(target, **drafters())})  # type: ignore[dict-item]
    (shadow,) = shadows
    assert (shadow.arm, shadow.host) == (OTHER, HOST)
    sums = [Tally()]
    for seen in in_use:
        sums.append(sums[-1].plus(seen))
    covered = len(shadow._own)
    assert covered >= min(len(sums), 2)
    for own, expected in zip(shadow._own, sums[:covered], strict=True):
        assert own == pytest.approx(expected)
    record = auto.records[Kind(None, True)]
    verdict = shadow.verdict()
    if verdict is None:
        assert record.compared.keys() <= {(HOST, OFF)}
    else:
        evidence = record.compared[OTHER, HOST]
        assert evidence.total / evidence.weight == pytest.approx(math.log(verdict))


def test_who_needs_half_the_passes_half_as_long_again_is_a_third_faster(target: CpuTarget, steady: None) -> None:
    request = asking(81)
    truth = alone(target, request)[0]
    auto = auto_of(target, host=Knowing(truth, 0, 1, 1.0), other=Knowing(truth, 0, 3, 1.0))
    run(target, [request], drafters={"auto": auto})  # type: ignore[dict-item]
    (times,) = [
        math.exp(e.total / e.weight) for pair, e in auto.records[Kind(None, True)].compared.items() if OFF not in pair
    ]
    assert times == pytest.approx(2.0 / 1.5, rel=0.01)


def test_what_it_observes_is_its_own(target: CpuTarget, steady: None) -> None:
    request = asking()
    truth = alone(target, request)[0]
    other = Knowing(truth, 0, 4, 1.0)
    run(target, [request], drafters={"auto": auto_of(target, host=Knowing(truth, 0, 1, 1.0), other=other)})  # type: ignore[dict-item]
    text = [*request.prompt, *truth]
    assert [len(tokens) for tokens in other.watched] == [*range(26, 80, 5), 80]  # a token before the text ends
    assert all(tokens == text[: len(tokens)] for tokens in other.watched)


def test_one_that_breaks_is_let_go_and_its_method_stays(
    target: CpuTarget, steady: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request = asking()
    truth = alone(target, request)[0]
    broken = eagle3(target, CHEAP_ROWS)
    monkeypatch.setattr(broken, "_grow", None)
    auto = auto_of(target, host=Knowing(truth, 0, 2, 1.0), other=broken)
    collected = run(target, [request], drafters={"auto": auto})  # type: ignore[dict-item]
    assert signature(collected, request) == alone(target, request)
    assert "other failed in the shadow of another method" in caplog.text
    assert auto.records[Kind(None, True)].compared.keys() == {(HOST, OFF)}
    assert broken._pass.blocks.used == 0


def test_a_head_in_the_shadow_gives_back_what_it_held_also_where_the_request_is_cancelled(
    target: CpuTarget, steady: None
) -> None:
    request = asking()
    truth = alone(target, request)[0]
    head = eagle3(target, CHEAP_ROWS)
    auto = auto_of(target, host=Knowing(truth, 0, 1, 1.0), other=head)
    run(target, [request], drafters={"auto": auto})  # type: ignore[dict-item]
    assert (OTHER, HOST) in auto.records[Kind(None, True)].compared
    assert head._pass.blocks.used == 0
    run(target, [request], drafters={"auto": auto}, cancellations={6: "r"})  # type: ignore[dict-item]
    assert head._pass.blocks.used == 0


def test_only_a_sequence_that_comes_alone_has_one(target: CpuTarget, steady: None) -> None:
    """Or a busy server would draft twice for everybody, and long shots be neither used nor compared."""
    auto = auto_of(target, host=Knowing((), 0, 1, 1.0), other=Knowing((), 0, 1, 1.0))
    drafts = [auto.begin(asking()) for _ in range(3)]
    assert [draft.shadow is not None for draft in drafts] == [True, False, False]
    for draft in drafts[:2]:
        draft.release()
    assert auto.begin(asking()).shadow is None
    drafts[2].release()  # it was interrupted
    assert auto.begin(asking()).shadow is not None
    drafts[2].choose()  # and goes on
    assert auto.begin(asking()).shadow is None
    drafts.clear()  # it is over
    assert auto.begin(asking()).shadow is not None


def test_where_there_can_be_none_a_request_uses_what_it_drew(target: CpuTarget) -> None:
    def used(busy: bool, **members: int) -> Counter[str]:
        """By 200 requests, where the arm that is held to be better is believed to be so by half a standard error."""
        auto = auto_of(target, host=Knowing((), 0, 1, 1.0), other=Knowing((), 0, 1, 1.0))
        record = auto.records[Kind(None, True)] = Record(1.0, studied=1e3)
        for times in (1.0, 3.0) * 4:
            record.compare(HOST, OFF, times)
            record.compare(OTHER, OFF, 0.85 * times)
        running = auto.begin(asking()) if busy else None
        found = Counter(auto.begin(replace(asking(), **members)).drafting for _ in range(200))  # type: ignore[arg-type]
        assert running is None or not running.over
        return found

    assert used(False).keys() == {"host"}
    for taken in (used(True), used(False, window=3)):
        assert taken["other"] > 20


def test_either_goes_first_in_every_other_pass_and_no_step_with_a_shadow_is_paced(
    target: CpuTarget, steady: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asking()
    truth = alone(target, request)[0]
    order: list[str] = []
    paced: list[int] = []

    class Noting(Knowing):
        def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
            order.append("host" if self is host else "other")
            return super().propose(tokens, budget)

    host, other = Noting(truth, 0, 1, 1.0), Noting(truth, 1, 1, 1.0)
    monkeypatch.setattr(Pace, "saw", lambda self, kind, drafter, passes: paced.append(len(passes)))
    run(target, [request], drafters={"auto": auto_of(target, host=host, other=other)})  # type: ignore[dict-item]
    assert order[3:-1] == (["host", "other", "other", "host"] * 20)[: len(order) - 4]  # from when both draft in each
    assert max(paced) == 1


def test_it_compares_only_while_it_is_alone(target: CpuTarget, steady: None) -> None:
    """Sequences that are drafted for together share what drafting takes; a shadow would pay for all of it."""
    requests = [replace(asking(), request_id=name) for name in "ab"]
    truth = alone(target, requests[0])[0]
    auto = auto_of(target, host=Knowing(truth, 0, 1, 1.0), other=Knowing(truth, 0, 3, 1.0))
    run(target, requests, drafters={"auto": auto})  # type: ignore[dict-item]
    assert auto.records[Kind(None, True)].compared.keys() == {(HOST, OFF)}


def test_none_goes_beside_a_request_that_asks_for_a_window(target: CpuTarget, steady: None) -> None:
    auto = auto_of(target, host=Knowing((), 0, 1, 1.0), other=Knowing((), 0, 1, 1.0))
    assert auto.begin(replace(asking(), window=3)).shadow is None
    assert auto.begin(replace(asking(), window=0)).shadow is not None
