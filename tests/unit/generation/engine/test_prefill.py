"""How the rows of a pass are shared among prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.engine.cost import PassCost
from services.generation.engine.prefill import Prompt, rows_of_prompts

COST = PassCost.line(fixed=0.004, row=0.001)


def rows(
    *prompts: Prompt, most: int = 256, cost: PassCost = COST, decoding: int = 4, seconds: float = 0.025
) -> list[int]:
    return rows_of_prompts(prompts, most=most, seconds=seconds, cost=cost, decoding=decoding)


def test_beside_decoding_prompts_get_the_rows_that_the_time_allows() -> None:
    assert rows(Prompt(1000, 0)) == [25]
    assert rows(Prompt(1000, 0), seconds=0.05) == [50]
    assert rows(Prompt(1000, 0), most=10) == [10]


def test_sixteen_rows_or_two_for_each_that_decodes_are_there_whatever_their_time() -> None:
    assert rows(Prompt(1000, 0), seconds=1e-6) == [16]
    assert rows(Prompt(1000, 0), decoding=20, seconds=1e-6) == [40]
    assert rows(Prompt(1000, 10**6), cost=PassCost.line(0.004, 0.001, seen=1.0)) == [16]


def test_where_nobody_decodes_they_get_the_whole_pass() -> None:
    assert rows(Prompt(1000, 0), decoding=0) == [256]


def test_a_short_prompt_does_not_stand_behind_a_long_one() -> None:
    long, short = rows(Prompt(6000, 0), Prompt(15, 0))
    assert short == 15
    assert long == 10


def test_a_long_prompt_goes_on_however_many_shorter_ones_come() -> None:
    assert rows(*[Prompt(6000, 0), *[Prompt(30, 0)] * 3], decoding=4)[0] >= 1
    assert rows(*[Prompt(6000, 0), *[Prompt(30, 0)] * 100], decoding=4)[0] == 1


def test_the_tenant_that_was_given_least_comes_first() -> None:
    rich, poor = rows(Prompt(20, 0, given=900.0), Prompt(500, 0, given=100.0))
    assert poor > rich > 0


def test_rows_that_see_a_long_cache_take_longer() -> None:
    seeing = PassCost.line(fixed=0.004, row=0.001, seen=1e-6)
    assert rows(Prompt(1000, 500), cost=seeing, seconds=0.0605) == [40]
    assert rows(Prompt(1000, 0), cost=seeing, seconds=0.0605) == [60]


prompts = st.lists(st.builds(Prompt, st.integers(1, 3000), st.integers(0, 3000), st.floats(0, 1e6)), max_size=40)


@pytest.mark.parametrize("seen", [0.0, 1e-6, 1.0])
@given(found=prompts, most=st.integers(0, 300), decoding=st.integers(0, 32), seconds=st.floats(1e-6, 1.0))
def test_no_more_than_there_are_and_than_there_is_time_for(
    seen: float, found: list[Prompt], most: int, decoding: int, seconds: float
) -> None:
    cost = PassCost.line(fixed=0.004, row=0.001, seen=seen, key=1e-7)
    given = rows(*found, most=most, cost=cost, decoding=decoding, seconds=seconds)
    assert sum(given) <= most
    assert all(0 <= count <= prompt.left for count, prompt in zip(given, found, strict=True))
    assert not found or not most or given[0] > 0
    if decoding and sum(given) > max(16, 2 * decoding):
        places = zip(given, found, strict=True)
        taken = sum(n * (0.001 + seen * each.done) + (1e-7 * each.done if n else 0.0) for n, each in places)
        assert taken <= seconds + 1e-9
    if not decoding:
        assert sum(given) == min(most, sum(prompt.left for prompt in found))
