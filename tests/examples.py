"""How many random examples a test takes."""

from __future__ import annotations

from hypothesis import settings

LONG = 100  # of a test that names no count, in the profile `long`


def examples(count: int) -> int:
    """`count` in the profile `long`; elsewhere fewer, in the proportion of the profiles."""
    return max(1, count * settings().max_examples // LONG)
