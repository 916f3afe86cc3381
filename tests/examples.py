"""How many random examples and which points of a grid a test takes, and the folder of the golden files."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

VECTORS = Path(__file__).parent / "vectors"
LONG = 100  # of a test that names no count, in the profile `long`


def examples(count: int) -> int:
    """`count` in the profile `long`; elsewhere fewer, in the proportion of the profiles."""
    return max(1, count * settings().max_examples // LONG)


def grid(every: int, *axes: Sequence[Any]) -> list[Any]:
    """All combinations of values. Of `every` combinations that differ in one value, one is for each run and the others
    for the profile `long`.
    """
    return [
        pytest.param(
            *(value for _, value in point), marks=pytest.mark.long if sum(at for at, _ in point) % every else ()
        )
        for point in product(*map(enumerate, axes))
    ]
