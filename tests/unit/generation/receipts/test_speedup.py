"""Speedups that are stated, and those that are not."""

from __future__ import annotations

from dataclasses import replace

from services.generation.engine.events import NOTHING
from services.generation.receipts.issuer import Speedup, replayed

SERVED = replace(
    NOTHING.metrics, num_draft_tokens=8, num_accepted_tokens=6, target_passes=4, output_tokens=10, decode_seconds=1.5
)
"""2.5 tokens per pass."""


def test_a_replay_gives_the_ratio_of_the_two_times() -> None:
    assert replayed(3.0, SERVED) == Speedup(2.0, "replayed")
    assert replayed(0.75, SERVED) == Speedup(0.5, "replayed")


def test_nothing_is_stated_above_the_tokens_of_a_pass() -> None:
    assert replayed(2.5 * 1.5, SERVED) == Speedup(2.5, "replayed")
    assert replayed(2.51 * 1.5, SERVED) is None


def test_nothing_is_stated_where_nothing_was_drafted() -> None:
    assert replayed(1.5, replace(SERVED, num_draft_tokens=0, num_accepted_tokens=0)) is None


def test_nothing_is_stated_where_nothing_was_measured() -> None:
    assert replayed(1.0, replace(SERVED, decode_seconds=0.0)) is None
    assert replayed(0.0, SERVED) is None
