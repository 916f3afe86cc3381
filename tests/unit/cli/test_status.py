"""Rates of a stack between two moments."""

from __future__ import annotations

import pytest

from services.cli.status import Server, Stack, rates
from services.client.health import Sample, Samples


def server(name: str, read_at: float = 0.0, serving: bool = True, **values: float) -> Server:
    """`vllm_x` is vllm:x; `name__label__value` has a label."""
    samples = []
    for each, value in values.items():
        series, *label = each.replace("vllm_", "vllm:").split("__")
        samples.append(Sample(series, dict([label]) if label else {}, value))
    return Server(name, "a:1", serving, Samples(samples), read_at=read_at)


def stack(read_at: float, **of_generation: float) -> Stack:
    names = ("ledger", "auditor", "registry")
    return Stack((server("generation", read_at, **of_generation), *(server(name) for name in names)), None)


def test_rates_are_over_the_time_between_and_averages_over_what_ended_in_it() -> None:
    before = stack(10.0, vllm_generation_tokens_total=100, kolm_sequence_passes_total__method__off=10)
    after = stack(
        12.0,
        vllm_generation_tokens_total=150,
        kolm_sequence_passes_total__method__off=14,
        vllm_spec_decode_num_draft_tokens_total=8,
        vllm_spec_decode_num_accepted_tokens_total=6,
        vllm_time_to_first_token_seconds_sum=3.0,
        vllm_time_to_first_token_seconds_count=2,
    )
    done = rates(before, after)
    assert (done.seconds, done.tokens, done.acceptance, done.first_token) == (2.0, 25.0, 0.75, 1.5)
    assert (done.passes, done.next_token, done.batch) == ({"off": 2.0}, None, None)


def test_a_server_that_was_restarted_counts_from_its_start() -> None:
    before, after = stack(0.0, vllm_generation_tokens_total=1000), stack(1.0, vllm_generation_tokens_total=30)
    assert rates(before, after).tokens == 30.0


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("auditor", {"kolm_auditor_verdicts_total__outcome__DEVIATION": 2}, "2 deviations found"),
        ("auditor", {"kolm_auditor_obligations__state__overdue": 1}, "1 verdicts overdue"),
        ("ledger", {"kolm_ledger_open_halts": 1}, "1 halts open"),
        ("generation", {"kolm_outbox_refused": 3}, "3 receipts refused by the ledger"),
    ],
)
def test_a_broken_promise_is_named(name: str, values: dict[str, float], said: str) -> None:
    names = ("generation", "ledger", "auditor", "registry")
    broken = Stack(tuple(server(each, **(values if each == name else {})) for each in names), None)
    assert broken.broken == (said,)
    assert Stack(tuple(server(each) for each in names), None).broken == ()
