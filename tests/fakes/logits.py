"""Rows of logits of every awkward kind, for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from services.generation.target.arrays import Float32

SIZES = st.one_of(st.integers(1, 5), st.integers(6, 300), st.sampled_from((127, 128, 129, 255, 256, 257, 511, 700)))
"""Vocabularies; a group has 128 ids, a tile 256."""
KINDS = ("normal", "peaked", "near", "flat", "ties", "zeros", "huge", "subnormal")


@st.composite
def rows(draw: st.DrawFn, sizes: st.SearchStrategy[int] = SIZES) -> Float32:
    """Logits [vocab_size], float32, without NaN and +inf, one of them finite at least; some of them -inf at times."""
    rng, size, kind = np.random.default_rng(draw(st.integers(0, 2**32))), draw(sizes), draw(st.sampled_from(KINDS))
    row = _row(kind, rng, size)
    if draw(st.booleans()):
        holes = rng.random(size) < draw(st.sampled_from((0.1, 0.9, 1.0)))
        holes[rng.integers(size)] = False
        row[holes] = -np.inf
    return row


def _row(kind: str, rng: np.random.Generator, size: int) -> Float32:
    normal = rng.standard_normal(size)
    if kind == "peaked":
        normal[rng.integers(size, size=3)] += (9.0, 8.0, 7.9)
    made = {
        "normal": normal * 3.0,
        "peaked": normal,
        "near": 1.0 + np.round(normal * 3) * 2.0**-23,
        "flat": np.full(size, normal[0]),
        "ties": rng.choice([-1.5, 0.25, 2.0, 2.5], size),
        "zeros": rng.choice([0.0, -0.0, -1e-30], size),
        "huge": rng.choice([3.4e38, -3.4e38, 3.39e38, 1e30, 5.0], size),
        "subnormal": normal * 1e-40,
    }
    return made[kind].astype(np.float32)
