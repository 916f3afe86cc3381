"""A mask over a row of logits: a bit for each token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.sampling.compiled import compiled

Float32 = NDArray[np.float32]
UInt32 = NDArray[np.uint32]

_NONE, _ALL, _ONE = np.uint32(0), np.uint32(0xFFFFFFFF), np.uint32(1)


@compiled
def forbid(logits: Float32, allowed: UInt32) -> None:
    """-inf, in place, at tokens of logits [vocab_size] whose bit is 0; token 32 w + b has bit b of word w."""
    for w in range(allowed.shape[0]):
        word, first = allowed[w], 32 * w
        if word == _ALL:
            continue
        for i in range(first, min(first + 32, logits.shape[0])):
            if word == _NONE or not (word >> np.uint32(i - first)) & _ONE:
                logits[i] = -np.inf
