"""The switch inside a request: a method that does not pay hands over, and gets another turn after a rest."""

from __future__ import annotations

from services.generation.engine.speculation import Switch


def passes(switch: Switch, count: int, gain: float) -> list[str | None]:
    """Whose turn it was in each of so many passes with this gain."""
    turns = []
    for _ in range(count):
        turns.append(switch.method)
        switch.passed(gain)
    return turns


def test_a_method_that_pays_keeps_its_turn() -> None:
    switch = Switch(("eagle3", "lookahead"))
    assert passes(switch, 100, 0.5) == ["eagle3"] * 100


def test_a_method_that_waits_for_its_moment_at_little_cost_keeps_its_turn() -> None:
    switch = Switch(("lookahead",))
    assert passes(switch, 100, -0.02) == ["lookahead"] * 100


def test_one_bad_pass_among_good_ones_changes_nothing() -> None:
    switch = Switch(("lookahead",))
    for _ in range(20):
        assert passes(switch, 3, 1.0) + passes(switch, 1, -2.0) == ["lookahead"] * 4


def test_a_method_that_does_not_pay_hands_over_and_comes_back_after_ever_longer_rests() -> None:
    switch = Switch(("eagle3", "lookahead"))
    assert passes(switch, 8 + 8, -0.5) == ["eagle3"] * 8 + ["lookahead"] * 8
    assert passes(switch, 16 + 8, -0.5) == [None] * 16 + ["eagle3"] * 8
    assert passes(switch, 8 + 32, -0.5) == ["lookahead"] * 8 + [None] * 32
    assert switch.method == "eagle3"


def test_a_method_that_failed_gets_no_turn_again() -> None:
    switch = Switch(("eagle3", "lookahead"))
    switch.drop("eagle3")
    assert switch.method == "lookahead"
    switch.drop("lookahead")
    assert passes(switch, 40, 0.0) == [None] * 40


def test_dropping_an_earlier_method_keeps_the_turn() -> None:
    switch = Switch(("eagle3", "lookahead"))
    passes(switch, 8, -0.5)
    switch.drop("eagle3")
    assert switch.method == "lookahead"
