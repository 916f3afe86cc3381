"""The policy, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.generation.policy import Circumstances, decide
from services.generation.speculation_request import SpeculationRequest
from services.runtime.errors import FailedPrecondition, NotFound

TODAY = Circumstances(
    loaded=frozenset({"lookahead"}),
    profile_passed=True,
    halts_known=True,
    halted=frozenset(),
    max_temperature=1.2,
    off_when_halted=False,
)
EVERYTHING = replace(TODAY, loaded=frozenset({"lookahead", "eagle3", "rest", "draft"}))


def outcome(asked: SpeculationRequest, now: Circumstances = TODAY, temperature: float = 0.0) -> tuple[str, str | None]:
    decision = decide(asked, temperature, now)
    assert decision.requested_method == asked.method
    return decision.method, decision.fallback_reason


@pytest.mark.parametrize(
    ("workload", "method"),
    [
        (None, "eagle3"),
        ("single_tenant", "eagle3"),
        ("structured", "eagle3"),
        ("many_adapters", "lookahead"),
        ("code", "lookahead"),
        ("rag", "rest"),
    ],
)
def test_auto_follows_the_workload(workload: str | None, method: str) -> None:
    assert outcome(SpeculationRequest(workload=workload), EVERYTHING) == (method, None)


@pytest.mark.parametrize("method", ["off", "lookahead", "eagle3", "rest", "draft"])
def test_a_method_that_is_loaded_is_served_as_asked_whatever_the_workload(method: str) -> None:
    assert outcome(SpeculationRequest(method=method, workload="rag"), EVERYTHING) == (method, None)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (SpeculationRequest(), "no_head"),
        (SpeculationRequest(method="eagle3"), "no_head"),
        (SpeculationRequest(workload="rag"), "no_corpus"),
        (SpeculationRequest(method="rest"), "no_corpus"),
        (SpeculationRequest(method="draft"), "no_draft_model"),
        (SpeculationRequest(workload="code"), None),
    ],
)
def test_what_is_not_loaded_falls_back_to_lookahead_and_says_why(asked: SpeculationRequest, reason: str) -> None:
    assert outcome(asked) == ("lookahead", reason)


@pytest.mark.parametrize("method", ["auto", "lookahead", "eagle3", "rest"])
@pytest.mark.parametrize(
    ("now", "temperature", "reason"),
    [
        (TODAY, 1.21, "temperature"),
        (replace(TODAY, profile_passed=False), 0.0, "profile_unproven"),
        (replace(TODAY, halts_known=False), 0.0, "halt_state_unknown"),
        (replace(TODAY, halts_known=False, halted=frozenset({"lookahead"})), 0.0, "halt_state_unknown"),
        (replace(TODAY, halted=frozenset({"lookahead"}), off_when_halted=True), 0.0, "halted"),
    ],
)
def test_speculation_is_off_where_it_cannot_be_vouched_for(
    method: str, now: Circumstances, temperature: float, reason: str
) -> None:
    assert outcome(SpeculationRequest(method=method), now, temperature) == ("off", reason)


def test_temperature_1_2_still_speculates() -> None:
    assert outcome(SpeculationRequest(method="lookahead"), TODAY, 1.2) == ("lookahead", None)


def test_off_is_off_for_no_reason_and_never_halted() -> None:
    worst = replace(TODAY, profile_passed=False, halts_known=False, halted=frozenset({"lookahead", "eagle3"}))
    assert outcome(SpeculationRequest(method="off"), worst, 2.0) == ("off", None)


def test_a_halted_method_is_refused_and_the_others_are_not() -> None:
    halted = replace(EVERYTHING, halted=frozenset({"lookahead"}))
    with pytest.raises(FailedPrecondition) as refused:
        decide(SpeculationRequest(method="lookahead"), 0.0, halted)
    assert refused.value.reason == "SPEC_DECODE_HALTED"
    assert outcome(SpeculationRequest(), halted) == ("eagle3", None)


def test_a_halt_of_the_fallback_counts_too() -> None:
    with pytest.raises(FailedPrecondition):
        decide(SpeculationRequest(method="rest"), 0.0, replace(TODAY, halted=frozenset({"lookahead"})))


def test_a_head_that_is_named_has_to_be_there() -> None:
    with pytest.raises(NotFound):
        decide(SpeculationRequest(method="eagle3", eagle_head="mine@sha256:ab"), 0.0, TODAY)


def test_k_goes_with_what_speculates_only() -> None:
    assert decide(SpeculationRequest(method="lookahead", k=3), 0.0, TODAY).k == 3
    assert decide(SpeculationRequest(method="lookahead", k=3), 1.5, TODAY).k is None


def test_with_nothing_loaded_everything_is_off() -> None:
    bare = replace(TODAY, loaded=frozenset())
    assert outcome(SpeculationRequest(), bare) == ("off", "no_head")
    assert outcome(SpeculationRequest(method="lookahead"), bare) == ("off", "not_loaded")
