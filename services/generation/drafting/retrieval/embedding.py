"""Passages and requests as vectors: the mean of the base's token embeddings, rare tokens counting more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.checkpoint import open_checkpoint
from services.generation.target.config import read_config

Float32 = NDArray[np.float32]
_COMMON = 1e-3  # a token as frequent as this counts half (Arora et al. 2017, "a simple but tough-to-beat baseline")


class Embedder:
    """Maps token ids to vectors of length 1, [hidden_size] float32.

    The vectors are the base's own hidden states before its first layer, mean-pooled: a corpus of ten million tokens
    takes seconds, where the whole model would take half an hour on the same cores.
    """

    def __init__(self, vectors: Float32, weights: Float32) -> None:
        """vectors [vocab, hidden]; weights [vocab], what a token counts."""
        self._vectors = vectors * weights[:, None]

    @classmethod
    def of_base(cls, base: Path, weights: Float32) -> Embedder:
        """Raises TargetError if the base's directory is not one that loads."""
        config = read_config(base)
        with open_checkpoint(base, config) as checkpoint:
            vectors: Float32 = checkpoint.read("model.embed_tokens.weight").numpy()
        return cls(vectors[: len(weights)], weights)

    @property
    def dimensions(self) -> int:
        return int(self._vectors.shape[1])

    def passages(self, tokens: NDArray[Any], table: NDArray[np.int64]) -> Float32:
        """[passages, hidden]; table [passages, 3] as in the datastore: shard, first token, tokens (at least one)."""
        out = np.empty((len(table), self.dimensions), np.float32)
        for row, (_, first, count) in enumerate(table.tolist()):
            self._vectors.take(tokens[first : first + count], axis=0).sum(axis=0, out=out[row])
        return _unit(out)

    def request(self, tokens: NDArray[np.int64]) -> Float32:
        """[hidden] of the end of a request."""
        embedding: Float32 = _unit(self._vectors.take(tokens, axis=0).sum(axis=0)[None])[0]
        return embedding


def token_weights(counts: NDArray[np.int64]) -> Float32:
    """What each token counts, [vocab], from how often it occurs in the corpus."""
    share = counts / max(int(counts.sum()), 1)
    return (_COMMON / (_COMMON + share)).astype(np.float32)


def _unit(rows: Float32) -> Float32:
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    unit: Float32 = rows / np.maximum(norms, np.float32(1e-12))
    return unit
