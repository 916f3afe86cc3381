"""The line of speed: times that add up."""

from __future__ import annotations

import re

import pytest

from services.cli.views.generation.speed import speed
from services.client.generation.completion import Metrics


def metrics(first: float, decode: float) -> Metrics:
    return Metrics(
        num_drafts=0,
        num_draft_tokens=0,
        num_accepted_tokens=0,
        acceptance_rate=0.0,
        mean_acceptance_length=1.0,
        num_accepted_tokens_per_pos=(),
        target_passes=9,
        first_token_seconds=first,
        decode_seconds=decode,
        wall_clock_speedup=None,
        speedup_basis="",
        method="off",
        requested_method="off",
        fallback_reason=None,
        passes_by_method={"off": 9},
    )


@pytest.mark.parametrize(
    ("tokens", "first", "decode", "waited", "line"),
    [
        (8, 0.214, 1.811, 3.9, "8 tokens in 3.90 s (first after 0.21 s, 4 tokens/s for 1.81 s, receipt 1.88 s later)"),
        (48, 0.214, 1.811, None, "48 tokens in 2.02 s (first after 0.21 s, 26 tokens/s for 1.81 s)"),
        (1, 0.2, 0.0, 0.21, "1 token in 0.21 s (first after 0.20 s, receipt 0.01 s later)"),
        (5, 0.0, 2.0, 2.5, "5 tokens in 2.50 s (2 tokens/s for 2.00 s, receipt 0.50 s later)"),
        (0, 0.0, 0.0, 0.25, "0 tokens in 0.25 s"),
        (0, 0.0, 0.0, None, "0 tokens"),
    ],
)  # fmt: skip
def test_the_times_are_said(tokens: int, first: float, decode: float, waited: float | None, line: str) -> None:
    assert speed(tokens, metrics(first, decode), waited) == line


@pytest.mark.parametrize("first", [0.114, 0.115, 0.116, 0.333])
@pytest.mark.parametrize("decode", [1.004, 1.005, 1.006])
@pytest.mark.parametrize("rest", [0.0, 0.004, 0.006, 1.0])
def test_the_times_add_up_as_they_are_shown(first: float, decode: float, rest: float) -> None:
    line = speed(9, metrics(first, decode), first + decode + rest)
    whole, *parts = (round(100 * float(each)) for each in re.findall(r"([0-9.]+) s", line.replace("tokens/s", "")))
    assert whole == sum(parts)
