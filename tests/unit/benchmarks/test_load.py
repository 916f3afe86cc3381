"""The load run: what it asks, and how it sums up what callers saw."""

from __future__ import annotations

from collections import Counter

from benchmarks.load.callers import TENANTS, Seen, requests
from benchmarks.load.measure import figures


def test_requests_mix_tenants_methods_lengths_and_temperatures_and_are_the_same_each_time() -> None:
    asked = requests(24, ["auto", "lookahead", "suffix"])
    assert asked == requests(24, ["auto", "lookahead", "suffix"])
    assert Counter(each.request.tenant for each in asked) == dict.fromkeys(TENANTS, 12)
    assert Counter(each.method for each in asked) == dict.fromkeys(["auto", "lookahead", "suffix"], 8)
    assert len({each.request.params.max_tokens for each in asked}) == 4
    assert {each.request.params.temperature for each in asked} == {0.0, 0.7}
    assert all(each.request.messages for each in asked)


def test_figures_are_of_all_runs_together_and_count_what_failed() -> None:
    quick = Seen(seconds=1.0, tokens=100, first=[0.1, 0.2], gaps=[0.01] * 98, outputs={0: "a", 1: "b"})
    slow = Seen(seconds=4.0, tokens=100, first=[0.3], gaps=[0.03] * 2, outputs={0: "a"}, failures=Counter(QUEUE_FULL=1))
    found = figures([quick, slow])
    assert (found["requests"], found["failures"]) == (3, {"QUEUE_FULL": 1})
    assert found["tokens_per_second"] == 62.5
    assert found["first_token_ms"]["p50"] == 200.0
    assert found["inter_token_ms"] == {"p50": 10.0, "p99": 30.0}
