"""`docs/numerics.md`, Cache and Attention."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.generation.target.reference.operations import ZERO, add, capped, exp, fma, fold, larger

Float32 = NDArray[np.float32]

BLOCK = 64  # positions


def cached(values: Float32, dtype: str) -> Float32:
    """`values` as they are read from a cache of `dtype`, float32 or bfloat16."""
    if dtype == "float32":
        return values
    bits = values.view(np.uint32)
    to_even = (bits >> 16 & 1) + np.uint32(0x7FFF)  # carries into the upper half exactly where rounding goes up
    rounded = (bits + to_even >> 16 << 16).view(np.float32)
    return np.where(np.isnan(values), values, rounded)


@np.errstate(all="ignore")
def attention(
    queries: Float32, keys: Float32, values: Float32, window: int, cap: np.float32 = ZERO,
    sinks: Float32 | None = None, chunk: int = 0,
) -> Float32:  # fmt: skip
    """The row at the last position of its own history, which holds it: [heads, dim].

    Args:
        queries: [heads, dim], rotated and scaled.
        keys, values: [positions, key heads, dim], keys rotated.
        window: positions that the row sees, itself included; 0 is all of them.
        cap: what scores are bent below; 0 leaves them as they are.
        sinks: [heads] or none.
        chunk: positions of which the row sees those of its own chunk; 0 is no chunk.
    """
    heads, positions = len(queries), len(keys)
    first = max(0, positions - window) if window else 0
    first = max(first, (positions - 1) // chunk * chunk) if chunk else first
    key_head = np.arange(heads) // (heads // keys.shape[1])
    blocks = []
    for block in range(first // BLOCK, (positions - 1) // BLOCK + 1):
        low, high = max(first, block * BLOCK), min(positions, (block + 1) * BLOCK)
        visible = np.arange(low, high) - block * BLOCK
        blocks.append(_block(queries, keys[low:high, key_head], values[low:high, key_head], visible, cap))
    if sinks is not None:
        blocks.append((sinks, np.ones_like(sinks), np.zeros_like(queries)))
    top, total, mixed = blocks[0]
    for m, weight, o in blocks[1:]:
        before, top = top, larger(top, m)
        a, c = exp(before - top), exp(m - top)
        total = fma(weight, c, total * a)
        mixed = fma(o, c[:, None], mixed * a[:, None])
    return mixed / total[:, None]


def _block(
    queries: Float32, keys: Float32, values: Float32, visible: NDArray[np.int64], cap: np.float32
) -> tuple[Float32, Float32, Float32]:
    """(m, l, o): [heads], [heads], [heads, dim] of the keys and values [visible, heads, dim] of one block."""
    heads, dim = queries.shape
    score = np.zeros((heads, len(visible)), np.float32)
    for i in range(dim):
        score = fma(queries[:, i, None], keys[:, :, i].T, score)
    score = capped(score, cap) if cap else score
    scores = np.full((heads, BLOCK), -np.inf, np.float32)
    scores[:, visible] = score
    m = fold(scores, larger)
    e = np.zeros((heads, BLOCK), np.float32)
    e[:, visible] = exp(score - m[:, None])
    o = np.zeros((heads, dim), np.float32)
    for j, place in enumerate(visible):
        o = fma(e[:, place, None], values[j], o)
    return m, fold(e, add), o
