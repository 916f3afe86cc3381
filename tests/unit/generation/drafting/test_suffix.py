"""Suffix decoding: past outputs save passes, of their own tenant alone, in bounded memory, until they are forgotten."""

from __future__ import annotations

import random
from collections.abc import Sequence
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.suffix import MOST_PASTS, MOST_TOKENS, Past, SuffixDraft, SuffixDrafter
from services.generation.engine.core import EngineSettings
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.cpu import CpuTarget
from tests.fakes.budgets import budget as budget_of
from tests.fakes.engine_runs import CHEAP_ROWS, run
from tests.unit.generation.engine.test_identity import ONE_ROW, battery, parameters, signature

BOLD = budget_of(nodes=64, depth=16, breakeven=0.001)


def request(tenant: str | None, request_id: str = "r", adapter: str | None = None, **sampling: object) -> EngineRequest:
    params = SamplingParams(**{"max_tokens": 60, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return EngineRequest(request_id, (5, 9), params, method="suffix", tenant=tenant, adapter=adapter)


def emitted(drafter: SuffixDrafter, asked: EngineRequest, output: Sequence[int]) -> None:
    """A request has come to its end with an output."""
    draft = drafter.begin(asked)
    draft.finish([*asked.prompt, *output])
    draft.release()


def drafted(drafter: SuffixDrafter, asked: EngineRequest, tokens: Sequence[int] = (7, 1, 2, 3)) -> set[int]:
    return set(drafter.begin(asked).propose(list(tokens), BOLD).tokens[1:])


@given(seed=st.integers(0, 2**32))
@battery
def test_no_past_changes_a_token(target: CpuTarget, cramped_target: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    drafters = {"suffix": SuffixDrafter(), "lookahead": LookaheadDrafter(CHEAP_ROWS)}
    prompts = [tuple(rng.randrange(384) for _ in range(rng.choice((1, 3, 40, 65)))) for _ in range(2)]
    requests = []
    for number in range(5):
        method, others = rng.choice((("suffix", ()), ("suffix", ()), ("lookahead", ("suffix",)), ("off", ())))
        asked = EngineRequest(
            f"r{number}", rng.choice(prompts), parameters(rng), method=method, next_methods=others,
            tenant=rng.choice(("a", "b", None)),
        )  # fmt: skip
        requests.append(asked)
    expected = []
    for asked in requests:
        off = EngineRequest(asked.request_id, asked.prompt, asked.sampling, asked.choice)
        expected.append(signature(run(target, [off], settings=ONE_ROW), off))
    for serving, schedule in (
        (target, EngineSettings()),
        (cramped_target, EngineSettings(max_rows=17, prefill_rows=7)),
    ):
        collected = run(serving, requests, drafters=drafters, settings=schedule, arrivals=range(0, 25, 5))
        assert [signature(collected, asked) for asked in requests] == expected
        if rng.random() < 0.5:
            drafters["suffix"].forget(rng.choice("ab"), rng.choice((None, requests[0].key)))


def test_what_was_said_before_takes_few_passes(target: CpuTarget) -> None:
    drafters = {"suffix": SuffixDrafter()}
    first, again = request("a", "1", temperature=1.0, seed=4), request("a", "2", temperature=1.0, seed=4)
    outcomes = [run(target, [asked], drafters=drafters).outcomes[asked.key] for asked in (first, again)]
    assert outcomes[0].token_ids == outcomes[1].token_ids
    assert outcomes[1].metrics.target_passes < 20 < outcomes[0].metrics.target_passes


def test_a_tenant_is_drafted_for_from_its_own_outputs_with_the_same_adapter_alone() -> None:
    drafter = SuffixDrafter()
    for number, (tenant, adapter) in enumerate((("a", None), ("b", None), ("a", "adapter"), (None, None))):
        emitted(drafter, request(tenant, str(number), adapter), [1, 2, 3, 10 * (number + 1)])
    assert drafted(drafter, request("a")) == {10}
    assert drafted(drafter, request("b")) == {20}
    assert drafted(drafter, request("a", adapter="adapter")) == {30}
    for other in ("A", "", "a ", None):
        assert drafted(drafter, request(other)) == set()


def test_not_even_how_often_copies_hold_crosses_from_one_tenant_to_another() -> None:
    used, fresh, likely = SuffixDrafter(), SuffixDrafter(), budget_of(nodes=64, depth=16, breakeven=0.3)
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    for drafter in (used, fresh):
        emitted(drafter, request("b", "b"), [1, 2, 3, 4, 5])
    for _ in range(50):
        draft = used.begin(request("a"))
        tree = draft.propose(tokens, likely)
        draft.observe([*tokens, 99], tree, [0], np.zeros((len(tree), 1), np.float32))
    trees = [drafter.begin(request("b")).propose(tokens, likely) for drafter in (used, fresh)]
    assert trees[0] == trees[1]
    assert len(used.begin(request("a")).propose(tokens, likely)) < len(trees[0])


def test_the_newest_outputs_are_kept_and_the_text_never_grows_beyond_its_bound() -> None:
    past = Past()
    for number in range(300):
        past.add((str(number), 0), list(range(1000 * number, 1000 * number + 200)))
        assert len(past.text) <= MOST_TOKENS
    assert past.text[-2] == 299_199
    assert len(past.text) > MOST_TOKENS - 201
    past.add(("long", 0), list(range(50_000)))
    assert (len(past.text), past.text[-2], past.text[-1]) == (MOST_TOKENS, 49_999, -1)
    past.add(("empty", 0), [])
    past.add(("short", 0), [1])
    assert past.text[-2:].tolist() == [1, -1]


def test_so_many_tenants_are_kept_and_the_least_recently_used_one_is_forgotten() -> None:
    drafter = SuffixDrafter()
    for number in range(MOST_PASTS):
        emitted(drafter, request(f"t{number}"), [1, 2, 3, 4])
    assert drafted(drafter, request("t0")) == {4}
    emitted(drafter, request("new"), [1, 2, 3, 4])
    assert len(drafter._pasts) == MOST_PASTS
    assert drafted(drafter, request("t0")) == {4}
    assert drafted(drafter, request("t1")) == set()


@pytest.mark.parametrize("running", [False, True], ids=["over", "with a request running"])
def test_what_is_forgotten_is_not_drafted_again(running: bool) -> None:
    drafter = SuffixDrafter()
    for tenant in ("a", "b"):
        emitted(drafter, request(tenant, "1"), [1, 2, 3, 10])
        emitted(drafter, request(tenant, "2"), [1, 2, 3, 20])
    draft = drafter.begin(request("a"))

    def seen(tenant: str) -> set[int]:
        if running and tenant == "a":
            return set(draft.propose([7, 1, 2, 3], BOLD).tokens[1:])
        return drafted(drafter, request(tenant))

    assert seen("a") == {10, 20}
    drafter.forget("a", ("1", 1))
    drafter.forget("c", ("1", 0))
    assert seen("a") == {10, 20}
    drafter.forget("a", ("1", 0))
    assert seen("a") == {20}
    drafter.forget("a")
    assert seen("a") == set()
    draft.finish([5, 9, 1, 2, 3, 40])
    assert drafted(drafter, request("a")) == set()  # what was running when its tenant was forgotten is not kept either
    assert drafted(drafter, request("b")) == {10, 20}


def test_requests_end_and_are_forgotten_in_different_threads() -> None:
    drafter = SuffixDrafter()
    kept, gone = ([request("a", f"{name} {number}") for number in range(300)] for name in ("kept", "gone"))
    for asked in gone:
        emitted(drafter, asked, [1])
    ending = Thread(target=lambda: [emitted(drafter, asked, [2]) for asked in kept])
    ending.start()
    for asked in gone:
        drafter.forget("a", asked.key)
    ending.join()
    draft = drafter.begin(request("a"))
    assert isinstance(draft, SuffixDraft)
    assert draft._past.text.tolist() == [2, -1] * 300
