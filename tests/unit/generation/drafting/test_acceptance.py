"""Acceptance of drafted tokens: its counts, and its predictions."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.acceptance import Acceptance, RequestAcceptance, first_choice_kind
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.prediction import Prediction
from services.generation.drafting.rest import RestDrafter
from services.generation.engine.drafter import Drafter
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.target.cpu import CpuTarget
from tests.fakes.engine_runs import run
from tests.fakes.heads import eagle3, mtp
from tests.unit.generation.drafting.test_draft_model import drafter_of
from tests.unit.generation.engine.test_identity import alone, check_unchanged, parameters, short_battery, signature


def request(temperature: float = 0.0, adapter: str | None = None) -> EngineRequest:
    return EngineRequest("r", (1,), SamplingParams(temperature=temperature), adapter=adapter)


def record(acceptance: RequestAcceptance, kind: int, held: bool, times: int = 1) -> None:
    acceptance.record(np.full(times, kind), np.full(times, held))


@pytest.mark.parametrize("like", [request(1.0), request(0.0, "an adapter")])
def test_what_is_sampled_otherwise_is_counted_apart(like: EngineRequest) -> None:
    shared, kind = Acceptance(), first_choice_kind(1)
    record(shared.begin(request()), kind, False, 50)
    assert shared.begin(like).rates()[kind] == RequestAcceptance().rates()[kind]
    assert shared.begin(request()).rates()[kind] < RequestAcceptance().rates()[kind]


METHODS = ("lookahead", "rest", "eagle3", "draft", "mtp")
PROMPT = (1, 2, 3)


def drafters_of(target: CpuTarget) -> dict[str, Drafter]:
    return {
        "lookahead": LookaheadDrafter(), "rest": RestDrafter({}),
        "eagle3": eagle3(target, copies=True), "mtp": mtp(target, copies=True),
        "draft": drafter_of(target),
    }  # fmt: skip


def predicted(expected: Sequence[int], output: Sequence[int]) -> list[list[int]]:
    """Tokens that may come after an output, the likeliest first."""
    prediction = Prediction(EngineRequest("r", PROMPT, SamplingParams(), prediction=tuple(expected)))
    for end in range(len(output)):  # token by token, as the worst method emits them
        prediction.copies([*PROMPT, *output[:end]])
    (copies,) = prediction.copies([*PROMPT, *output], 8)
    assert copies.lengths.tolist() == sorted(copies.lengths.tolist(), reverse=True)
    return [[token for token in row if token >= 0] for row in copies.tokens.tolist()]


def test_a_right_prediction_is_followed_from_its_first_token_to_its_last() -> None:
    expected = list(range(10, 30))
    for end in range(20):
        assert predicted(expected, expected[:end]) == [expected[end : end + 8]]
    assert predicted(expected, expected) == [[]]


def test_the_output_comes_back_behind_what_it_replaced_added_or_left_out() -> None:
    expected = list(range(10, 40))
    for output in ([10, 11, 99, 98, 14, 15, 16], [10, 11, 99, 98, 12, 13, 14, 15, 16], [10, 14, 15, 16]):
        assert predicted(expected, output)[0] == expected[7:15]
        assert expected[5:13] in predicted(expected, output[:-2]), "it may be back after one token"


@pytest.mark.parametrize(
    ("old", "new"),
    [([50], [90]), ([50, 51], [90]), ([50], [90, 91, 92]), ([50, 51], [50]), ([50], [50, 90])],
    ids=["one for one", "shorter", "longer", "left out", "added"],
)
def test_an_edit_that_was_seen_is_expected_again(old: list[int], new: list[int]) -> None:
    lines = [[10 * n, 10 * n + 1, 10 * n + 2] for n in range(1, 5)]
    expected = [token for line in lines for token in (*line, *old)]
    output = [token for line in lines for token in (*line, *new)]
    seen = len(lines[0]) + len(new) + len(lines[1])
    following, as_it_stands = predicted(expected, output[:seen])
    assert following == output[seen : seen + 8]
    behind = 2 * len(lines[0]) + len(old)
    assert as_it_stands == expected[behind : behind + 8]
    within = predicted(expected, output[: seen + 1])[0]
    assert within == output[seen + 1 : seen + 9], "also from within it"


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=60))
def test_whatever_is_expected_and_said_something_well_formed_is_drafted(expected: list[int], output: list[int]) -> None:
    prediction = Prediction(EngineRequest("r", PROMPT, SamplingParams(), prediction=tuple(expected)))
    for end in range(len(output) + 1):
        found = prediction.copies([*PROMPT, *output[:end]], 5)
        assert bool(found) == bool(expected)
        for copies in found:
            assert copies.tokens.shape == (len(copies.lengths), 5)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_drafts_what_is_expected(target: CpuTarget, method: str) -> None:
    request = EngineRequest("r", (7, 8, 9), SamplingParams(1.0, seed=3, max_tokens=120, ignore_eos=True), method=method)
    expected = alone(target, request)
    drafters = drafters_of(target)
    found = {}
    for name, prediction in (("none", ()), ("right", expected[0]), ("wrong", expected[0][::-1])):
        asked = replace(request, prediction=tuple(prediction))
        collected = run(target, [asked], drafters=drafters)
        assert signature(collected, asked) == expected
        found[name] = collected.outcomes[asked.key].metrics
    right, wrong = found["right"], found["wrong"]
    assert right.target_passes <= 6 < found["none"].target_passes
    assert (right.accepted_prediction_tokens, right.rejected_prediction_tokens) == (right.num_accepted_tokens, 0)
    assert wrong.accepted_prediction_tokens < 10
    assert 0 < wrong.rejected_prediction_tokens < wrong.num_draft_tokens + 1
    assert found["none"].accepted_prediction_tokens == found["none"].rejected_prediction_tokens == 0


@given(seed=st.integers(0, 2**32))
@short_battery
def test_no_prediction_changes_a_token(target: CpuTarget, cramped_target: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    requests, expected = [], {}
    for number in range(3):
        prompt = tuple(rng.randrange(384) for _ in range(rng.choice((1, 3, 40, 65))))
        method = rng.choice(METHODS)
        request = EngineRequest(f"r{number}", prompt, parameters(rng), method=method, k=rng.choice((None, None, 3)))
        expected[request.key] = alone(target, request)
        requests.append(replace(request, prediction=edited(rng, expected[request.key][0])))
    serving = rng.choice((target, cramped_target))
    check_unchanged(serving, requests, expected, drafters_of(serving), rng)


def edited(rng: random.Random, output: Sequence[int]) -> tuple[int, ...]:
    """Right, in parts, or not at all."""
    if rng.random() < 0.2:
        return tuple(rng.randrange(384) for _ in range(50))
    kept = list(output)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(kept) + 1)
        kept[at : at + rng.randrange(4)] = [rng.randrange(384) for _ in range(rng.randrange(4))]
    return tuple(kept)
