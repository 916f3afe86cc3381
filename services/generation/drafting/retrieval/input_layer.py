"""Passages and requests as the mean of the base's token embeddings, rare tokens counting more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.retrieval.embedding import Embedding, Float32, unit
from services.generation.target.checkpoint import open_checkpoint
from services.generation.target.config import read_config


class InputLayer:
    """`Embedder` by the base's hidden states before its first layer, pooled.

    A corpus of ten million tokens takes seconds, where the layers above would take an hour (ADR 0027).
    """

    def __init__(self, embedding: Embedding, vectors: Float32, weights: Float32) -> None:
        """vectors [vocab, hidden]; weights [vocab], what a token counts."""
        self.embedding = embedding
        self._vectors = vectors * weights[:, None]

    @classmethod
    def of_base(cls, embedding: Embedding, base: Path, weights: Float32) -> InputLayer:
        """Raises TargetError if the base's directory is not one that loads."""
        config = read_config(base)
        with open_checkpoint(base, config) as checkpoint:
            vectors: Float32 = checkpoint.read("model.embed_tokens.weight").numpy()
        return cls(embedding, vectors[: len(weights)], weights)

    @property
    def dimensions(self) -> int:
        return int(self._vectors.shape[1])

    def passages(self, tokens: NDArray[Any], table: NDArray[np.int64]) -> Float32:
        out = np.empty((len(table), self.dimensions), np.float32)
        for row, (_, first, count) in enumerate(table.tolist()):
            self._vectors.take(tokens[first : first + count], axis=0).sum(axis=0, out=out[row])
        return unit(out)

    def request(self, tokens: NDArray[np.int64]) -> Float32:
        embedding: Float32 = unit(self._vectors.take(tokens, axis=0).sum(axis=0)[None])[0]
        return embedding
