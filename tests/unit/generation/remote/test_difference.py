"""Reasons why a difference from the plain engine's answer proves nothing about speculation."""

from dataclasses import replace

import pytest

from services.generation.engine.events import EMPTY_OUTCOME, FinishReason, Outcome
from services.generation.engine.request import EngineRequest, SamplingParams, StructuredOutputs
from services.generation.remote.difference import (
    NEAR_TIE,
    RARE,
    after,
    goes_on,
    incomparable,
    may_be_rounding,
    unsteady,
)
from tests.unit.ledger.builders import engine_profile

GREEDY = SamplingParams()
WARM = replace(GREEDY, temperature=1.0)
LIKELY = {1: -0.5, 2: -0.5 - NEAR_TIE / 2, 3: -0.5 - 2 * NEAR_TIE, 4: -9.0}


@pytest.mark.parametrize(("served", "explained"), [(2, True), (3, False), (5, False)])
def test_at_temperature_0_a_near_tie_explains_a_difference(served: int, explained: bool) -> None:
    assert (may_be_rounding(engine_profile(), GREEDY, LIKELY, served, 1) is not None) == explained


def test_a_token_below_the_reported_ones_may_tie_with_the_last_of_them() -> None:
    close = {token: -1.0 - token * NEAR_TIE / 100 for token in range(20)}
    assert may_be_rounding(engine_profile(), GREEDY, close, 99, 0) is not None


@pytest.mark.parametrize(("last", "explained"), [(-9.0, True), (-RARE - 1.0, False)])
def test_above_temperature_0_every_token_that_may_be_drawn_explains_a_difference(last: float, explained: bool) -> None:
    profile = engine_profile(engine="llama-server")
    assert (may_be_rounding(profile, WARM, {1: -0.1, 2: last}, 99, 1) is not None) == explained


def test_a_batch_invariant_engine_does_not_round_otherwise() -> None:
    assert may_be_rounding(engine_profile(batch_invariant=True), GREEDY, LIKELY, 2, 1) is None


@pytest.mark.parametrize("members", [
    {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}, {"repetition_penalty": 1.1}, {"logit_bias": ((3, 1.0),)},
])  # fmt: skip
def test_log_probabilities_before_penalties_exclude_no_near_tie(members: dict[str, object]) -> None:
    assert may_be_rounding(engine_profile(), replace(GREEDY, **members), LIKELY, 3, 1) is not None  # type: ignore[arg-type]


def test_an_engine_without_log_probabilities_excludes_no_near_tie() -> None:
    assert may_be_rounding(engine_profile(), GREEDY, {}, 3, 1) is not None


@pytest.mark.parametrize(("engine", "sampling", "cached", "flags", "comparable"), [
    ("vllm", GREEDY, 0, {}, True), ("vllm", WARM, 0, {}, False), ("sglang", WARM, 0, {}, False),
    ("llama-server", WARM, 0, {}, True), ("llama-server", GREEDY, 24, {}, False),
    ("llama-server", GREEDY, 0, {"prefix_cache": "true"}, False),
])  # fmt: skip
def test_answers_that_differ_in_more_than_speculation_are_incomparable(
    engine: str, sampling: SamplingParams, cached: int, flags: dict[str, str], comparable: bool
) -> None:
    profile = engine_profile(engine=engine, flags=flags, batch_invariant=True)
    assert (incomparable(profile, sampling, cached) is None) == comparable


def plain(*ids: int, finish: FinishReason = "length") -> Outcome:
    return replace(EMPTY_OUTCOME, token_ids=ids, finish_reason=finish)


@pytest.mark.parametrize(("position", "invariant", "found"), [(0, False, False), (1, False, True), (0, True, True)])
def test_answers_that_differ_after_the_served_difference_hide_no_fault(
    position: int, invariant: bool, found: bool
) -> None:
    profile = engine_profile(batch_invariant=invariant)
    assert unsteady(profile, (plain(5, 6, 7), plain(5, 8, 7)), position) == found


@pytest.mark.parametrize(("position", "found"), [(1, True), (0, False)])
def test_an_engine_that_ends_one_answer_in_two_ways_is_unsteady_there(position: int, found: bool) -> None:
    assert unsteady(engine_profile(), (plain(5, 6), plain(5, 6, finish="stop")), position) == found


@pytest.mark.parametrize(("members", "found"), [
    ({}, True), ({"temperature": 0.7}, False), ({"stop": ("end",)}, False), ({"frequency_penalty": 0.5}, False),
    ({"structured_outputs": StructuredOutputs("json_object")}, False),
])  # fmt: skip
def test_the_rest_of_an_answer_is_compared_if_it_depends_on_its_tokens_alone(
    members: dict[str, object], found: bool
) -> None:
    assert goes_on(engine_profile(), replace(GREEDY, **members)) == found  # type: ignore[arg-type]
    assert not goes_on(engine_profile(flags={"prefix_cache": "true"}), GREEDY)


def test_the_rest_of_an_answer_has_the_tokens_before_as_its_prompt() -> None:
    asked = after(EngineRequest("", (1, 2), replace(GREEDY, max_tokens=9, min_tokens=3)), (5, 6, 7, 8))
    assert (asked.prompt, asked.sampling.max_tokens, asked.sampling.min_tokens) == ((1, 2, 5, 6, 7, 8), 5, 0)
