"""How many random examples a test takes."""

from __future__ import annotations

from hypothesis import settings

DEFAULT = 100  # hypothesis's own


def examples(count: int) -> int:
    """`count`; fewer in the profile `fast`, in the same proportion as the examples of tests that name no count."""
    return max(1, count * settings().max_examples // DEFAULT)
