"""A rate is what was expected until something was judged, then what held: in this request, then in others like it."""

from __future__ import annotations

import numpy as np
import pytest

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
from services.generation.engine.request import EngineRequest, SamplingParams


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
