"""How often drafted tokens hold: what is counted, and what is predicted from it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.drafting.acceptance import (
    NEAR,
    OWN,
    PAST,
    Acceptance,
    RequestAcceptance,
    copied,
    first_choice,
    said,
)
from services.generation.drafting.lookahead import LookaheadDrafter
from services.generation.drafting.prediction import Prediction
from services.generation.drafting.rest import RestDrafter
from services.generation.drafting.suffix import SuffixDrafter
from services.generation.engine.core import EngineSettings
from services.generation.engine.drafter import Drafter
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.cpu import CpuTarget
from tests.fakes.engine_runs import CHEAP_ROWS, run
from tests.fakes.heads import eagle3
from tests.unit.generation.drafting.test_draft_model import battery, drafter_of
from tests.unit.generation.engine.test_identity import alone, parameters, signature


def request(temperature: float = 0.0, adapter: str | None = None) -> EngineRequest:
    return EngineRequest("r", (1,), SamplingParams(temperature=temperature), adapter=adapter)


def record(acceptance: RequestAcceptance, kind: int, held: bool, times: int = 1) -> None:
    acceptance.record(np.full(times, kind), np.full(times, held))


def test_kinds_do_not_meet() -> None:
    lengths, shares, depths = (1, 2, 3, 5, 8, 9), (0.005, 0.55, 1.0), range(1, 9)
    kinds = {copied(source, length, rank) for source in range(5) for length in lengths for rank in range(3)}
    kinds |= {said(seconded, share, depth) for seconded in (0, 1) for share in shares for depth in depths}
    kinds |= {first_choice(depth) for depth in depths}
    assert len(kinds) == 5 * 6 * 3 + 2 * 3 * 8 + 8
    assert max(kinds) + 1 == len(RequestAcceptance().rates())
    assert copied(PAST, 900, 7) == copied(PAST, 9, 2)
    assert said(0, 0.55, 16) == said(0, 0.55, 8)


def test_more_is_expected_of_longer_matches_of_nearer_sources_and_of_surer_models() -> None:
    rates = RequestAcceptance().rates()
    assert rates[copied(OWN, 8, 0)] > rates[copied(OWN, 2, 0)] > rates[copied(OWN, 2, 1)]
    assert rates[copied(OWN, 8, 0)] > rates[copied(NEAR, 8, 0)]
    assert rates[said(0, 0.9, 1)] > rates[said(0, 0.1, 1)]
    assert rates[said(1, 0.3, 1)] > rates[said(0, 0.3, 1)]


def test_a_rate_follows_what_held_most_of_all_in_the_request_itself() -> None:
    shared = Acceptance()
    one, other, kind = shared.begin(request()), shared.begin(request()), copied(OWN, 4, 0)
    before = other.rates()[kind]
    record(one, kind, True, 20)
    assert before < other.rates()[kind] < one.rates()[kind]
    assert other.rates()[copied(OWN, 4, 1)] == pytest.approx(RequestAcceptance().rates()[copied(OWN, 4, 1)])


@pytest.mark.parametrize("like", [request(1.0), request(0.0, "an adapter")])
def test_what_is_sampled_otherwise_is_counted_apart(like: EngineRequest) -> None:
    shared, kind = Acceptance(), first_choice(1)
    record(shared.begin(request()), kind, False, 50)
    assert shared.begin(like).rates()[kind] == RequestAcceptance().rates()[kind]
    assert shared.begin(request()).rates()[kind] < RequestAcceptance().rates()[kind]


def test_what_was_counted_fades_with_what_follows_and_with_every_request() -> None:
    shared, kind = Acceptance(), first_choice(1)
    first = shared.begin(request())
    record(first, kind, False, 500)
    low = first.rates()[kind]
    record(first, kind, True, 500)
    assert first.rates()[kind] > 0.9 > low
    other = Acceptance()
    record(other.begin(request()), kind, False, 500)
    rates = [other.begin(request()).rates()[kind] for _ in range(80)]
    assert rates == sorted(rates)
    assert rates[0] < 0.1
    assert rates[-1] > 0.5


METHODS = ("lookahead", "rest", "eagle3", "draft", "suffix")
PROMPT = (1, 2, 3)


def drafters_of(target: CpuTarget) -> dict[str, Drafter]:
    return {
        "lookahead": LookaheadDrafter(CHEAP_ROWS), "rest": RestDrafter({}), "suffix": SuffixDrafter(),
        "eagle3": eagle3(target, CHEAP_ROWS, copies=True), "draft": drafter_of(target),
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


def test_as_much_may_have_been_replaced_or_nothing_before_a_token_says_so() -> None:
    assert predicted(list(range(10, 40)), [10, 11, 99]) == [list(range(13, 21)), list(range(12, 20))]


def test_of_places_alike_the_nearest_one_is_the_place() -> None:
    line = [5, 6, 7, 8]
    expected = [*line, 20, *line, 21, *line, 22, *line, 23]
    assert predicted(expected, [*line, 99, *line[1:]])[0] == expected[9:17]


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


def test_an_edit_that_is_not_made_again_is_not_expected_for_ever() -> None:
    expected = [token for n in range(10, 40, 3) for token in (n, n + 1, n + 2, 50)]
    output = [90 if at == 3 else token for at, token in enumerate(expected)]
    assert predicted(expected, output[:7])[0][0] == 90
    assert predicted(expected, output[:11])[0][0] == 50


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=60))
def test_whatever_is_expected_and_said_something_well_formed_is_drafted(expected: list[int], output: list[int]) -> None:
    prediction = Prediction(EngineRequest("r", PROMPT, SamplingParams(), prediction=tuple(expected)))
    for end in range(len(output) + 1):
        found = prediction.copies([*PROMPT, *output[:end]], 5)
        assert bool(found) == bool(expected)
        for copies in found:
            assert copies.tokens.shape == (len(copies.lengths), 5)


def test_only_what_was_taken_of_a_tree_counts_as_predicted_in_it() -> None:
    tree = TokenTree((1, 2, 99, 3, 4), (-1, 0, 1, 1, 3), frozenset({2, 3, 4}))
    assert tree.cut(4, 3, 50) == TokenTree((1, 2, 3, 4), (-1, 0, 1, 2), frozenset({2, 3}))
    assert tree.cut(3, 3, 50) == TokenTree((1, 2, 3), (-1, 0, 1), frozenset({2}))


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


def test_off_takes_no_notice_of_a_prediction(target: CpuTarget) -> None:
    request = EngineRequest("r", (7, 8, 9), SamplingParams(max_tokens=20, ignore_eos=True))
    asked = replace(request, prediction=alone(target, request)[0])
    collected = run(target, [asked], drafters=drafters_of(target))
    assert signature(collected, asked) == alone(target, request)
    assert collected.outcomes[asked.key].metrics.target_passes == 20


@given(seed=st.integers(0, 2**32))
@battery
def test_no_prediction_changes_a_token(target: CpuTarget, cramped_target: CpuTarget, seed: int) -> None:
    rng = random.Random(seed)
    requests, expected = [], []
    for number in range(3):
        prompt = tuple(rng.randrange(384) for _ in range(rng.choice((1, 3, 40, 65))))
        method = rng.choice(METHODS)
        request = EngineRequest(f"r{number}", prompt, parameters(rng), method=method, k=rng.choice((None, None, 3)))
        expected.append(alone(target, request))
        requests.append(replace(request, prediction=edited(rng, expected[-1][0])))
    serving = rng.choice((target, cramped_target))
    schedule = EngineSettings(max_rows=rng.choice((8, 17, 256)), prefill_rows=rng.choice((7, 64)))
    collected = run(serving, requests, drafters=drafters_of(serving), settings=schedule, arrivals=range(0, 15, 5))
    assert [signature(collected, request) for request in requests] == expected


def edited(rng: random.Random, output: Sequence[int]) -> tuple[int, ...]:
    """Right, in parts, or not at all."""
    if rng.random() < 0.2:
        return tuple(rng.randrange(384) for _ in range(50))
    kept = list(output)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(kept) + 1)
        kept[at : at + rng.randrange(4)] = [rng.randrange(384) for _ in range(rng.randrange(4))]
    return tuple(kept)
