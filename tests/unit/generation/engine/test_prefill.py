"""Rows of a pass shared among prompts, and how long a prompt waits at most."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.generation.engine.cost import PassCost
from services.generation.engine.prefill import Prompt, PromptRows

COST = PassCost.line(fixed=0.004, row=0.001)


def rows(
    *prompts: Prompt, most: int = 256, cost: PassCost = COST, decoding: int = 4, seconds: float = 0.025
) -> list[int]:  # fmt: skip
    return PromptRows(cost).of(dict(enumerate(prompts)), most=most, seconds=seconds, decoding=decoding)


def test_prompts_get_the_rows_for_which_decoding_leaves_time() -> None:
    assert rows(Prompt(1000, 0), decoding=1) == [25]
    assert rows(Prompt(1000, 0), decoding=4) == [22]
    assert rows(Prompt(1000, 0), decoding=4, seconds=0.05) == [47]
    assert rows(Prompt(1000, 0), decoding=4, most=10) == [10]


def test_sixteen_rows_are_there_whatever_their_time() -> None:
    assert rows(Prompt(1000, 0), seconds=1e-6) == [16]
    assert rows(Prompt(1000, 0), decoding=40) == [16]
    assert rows(Prompt(1000, 10**6), cost=PassCost.line(0.004, 0.001, seen=1.0)) == [16]


def test_prompts_behind_prefixes_for_which_there_is_no_time_left_get_no_rows() -> None:
    """Their caches alone would take longer, and nothing is fetched for a prompt without rows."""
    cost = PassCost.line(0.004, 0.001, key=1e-5)
    assert rows(*[Prompt(1, 24)] * 64, cost=cost, decoding=1, seconds=0.0299) == [1] * 24 + [0] * 40


def test_the_tenant_that_was_given_least_comes_first() -> None:
    rich, poor = Prompt(20, 0, counter=900.0, tenant="rich"), Prompt(500, 0, counter=100.0, tenant="poor")
    assert rows(rich, poor) == [0, 22]


def test_the_shortest_prompt_of_a_tenant_comes_first() -> None:
    assert rows(Prompt(500, 0), Prompt(20, 0), Prompt(30, 0), Prompt(400, 0)) == [0, 20, 2, 0]


def test_a_preempted_prompt_starts_again() -> None:
    shared = PromptRows(COST)
    for left in (100, 78, 56, 200, 178):
        prompts = {"preempted": Prompt(left, 0), "other": Prompt(150, 0)}
        first, second = shared.of(prompts, most=256, seconds=0.025, decoding=4)
    assert (first, second) == (0, 22)


prompts = st.lists(st.builds(Prompt, st.integers(1, 3000), st.integers(0, 3000), st.floats(0, 1e6)), max_size=64)


@pytest.mark.parametrize(("seen", "key"), [(0.0, 1e-7), (1e-6, 1e-6), (1.0, 1e-7)])
@given(found=prompts, most=st.integers(0, 300), decoding=st.integers(0, 32), seconds=st.floats(1e-6, 1.0))
def test_no_more_than_there_are_and_than_there_is_time_for(
    seen: float, key: float, found: list[Prompt], most: int, decoding: int, seconds: float
) -> None:
    cost = PassCost.line(fixed=0.004, row=0.001, seen=seen, key=key)
    given = rows(*found, most=most, cost=cost, decoding=decoding, seconds=seconds)
    assert sum(given) <= most
    assert all(0 <= count <= prompt.left for count, prompt in zip(given, found, strict=True))
    assert not found or not most or sum(given) > 0
    if decoding and sum(given) > 16:
        places = zip(given, found, strict=True)
        taken = sum(n * (0.001 + seen * each.done) + (key * each.done if n else 0.0) for n, each in places)
        assert taken + (decoding - 1) * 0.001 <= seconds + 1e-9
    if not decoding:
        assert sum(given) == min(most, sum(prompt.left for prompt in found))


@dataclass(eq=False)
class Waiting:
    """A prompt with `left` of its tokens, and the rows of its `equal` share, at most so many `in_a_pass`."""

    tenant: str
    tokens: int
    left: int
    equal: float = 0.0
    in_a_pass: float = 0.0

    @property
    def late(self) -> bool:
        """Whether it gets its last row four passes after its equal share is three times its tokens, or later."""
        return self.equal > 3.0 * self.tokens + 4.0 * self.in_a_pass


Arrivals = Iterator[list[tuple[str, int]]]


def served(arrivals: Arrivals, passes: int, given: dict[str, float]) -> list[Waiting]:
    """All prompts, in passes of 50 rows. `arrivals` of a pass: tenants and tokens; `given`: counters of tenants."""
    shared, came, waiting = PromptRows(COST), list[Waiting](), list[Waiting]()
    for new in islice(arrivals, passes):
        came += (arrived := [Waiting(tenant, tokens, tokens) for tenant, tokens in new])
        waiting = [w for w in waiting if w.left] + arrived
        prompts = {w: Prompt(w.left, w.tokens - w.left, given[w.tenant], w.tenant) for w in waiting}
        taken = shared.of(prompts, most=256, seconds=0.05, decoding=1)
        tenants = Counter(w.tenant for w in waiting)
        for w, own in zip(waiting, taken, strict=True):
            w.left -= own
            equal = sum(taken) / len(tenants) / tenants[w.tenant]
            w.equal, w.in_a_pass = w.equal + equal, max(w.in_a_pass, equal)
    return came


def callers(random: Random, count: int, tenant: str) -> Arrivals:
    """`count` prompts, and then about as many as there are rows for: short ones and long ones."""
    tokens = (40, 60, 80, 700, 1200)
    yield [(tenant, random.choice(tokens)) for _ in range(count)]
    while True:
        yield [(tenant, random.choice(tokens))] * (random.random() < 50 * len(tokens) / sum(tokens))


@pytest.mark.parametrize("count", [4, 64])
def test_no_prompt_waits_longer_than_three_equal_shares(count: int) -> None:
    came = served(callers(Random(1), count, "a"), 400, {"a": 0.0})
    assert sum(not w.left for w in came) > 20
    assert not [w for w in came if w.late]


def test_a_long_prompt_goes_on_however_many_shorter_ones_come() -> None:
    """They alone could take every row."""
    arrivals: Arrivals = ([("a", 25)] * 2 + [("a", 1000)] * (not number) for number in count())
    (long,) = (w for w in served(arrivals, 300, {"a": 0.0}) if w.tokens == 1000)
    assert not long.left
    assert not long.late


def test_other_tenants_delay_no_prompt_by_more_than_three_equal_shares() -> None:
    """The tenant with the lowest counter asks for more rows than there are."""
    random = Random(1)
    arrivals: Arrivals = (
        [("poor", 60)] + [("rich", random.choice((20, 100, 700)))] * (random.random() < 0.1) for _ in count()
    )
    rich = [w for w in served(arrivals, 200, {"poor": 0.0, "rich": 1e9}) if w.tenant == "rich"]
    assert sum(not w.left for w in rich) > 4
    assert not [w for w in rich if w.late]
