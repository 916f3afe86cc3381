"""Passages and requests as the mean of the base's token embeddings, rare tokens counting more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.retrieval.embedding import Embedding, Float32, unit
from services.generation.drafting.retrieval.token_vectors import TokenVectors
from services.generation.target.errors import WeightsInvalid

_PASSAGES = 1024  # embedded at a time


class InputLayer:
    """`Embedder` by the base's hidden states before its first layer, pooled.

    A corpus of ten million tokens takes seconds, where the layers above would take an hour (ADR 0027).
    """

    def __init__(self, embedding: Embedding, vectors: TokenVectors, weights: Float32) -> None:
        """weights [vocab], what a token counts."""
        self.embedding = embedding
        self._vectors, self._weights = vectors, weights

    @classmethod
    def of_base(cls, embedding: Embedding, base: Path, weights: Float32) -> InputLayer:
        """Raises TargetError if the base's directory has no table of token embeddings that fits its configuration."""
        vectors = TokenVectors.of_base(base)
        if vectors.count < len(weights):
            raise WeightsInvalid(
                f"{base}: its tokenizer has {len(weights)} tokens, its weights have embeddings for {vectors.count}"
            )
        return cls(embedding, vectors, weights)

    @property
    def dimensions(self) -> int:
        return self._vectors.dimensions

    def passages(self, tokens: NDArray[Any], table: NDArray[np.int64]) -> Iterator[Float32]:
        weighted = self._vectors.rows(slice(len(self._weights)))
        weighted *= self._weights[:, None]
        for at in range(0, len(table), _PASSAGES):
            part = table[at : at + _PASSAGES].tolist()
            out = np.empty((len(part), self.dimensions), np.float32)
            for row, (_, first, count) in enumerate(part):
                weighted.take(tokens[first : first + count], axis=0).sum(axis=0, out=out[row])
            yield unit(out)

    def request(self, tokens: NDArray[np.int64]) -> Float32:
        rows = self._vectors.rows(tokens) * self._weights[tokens][:, None]
        embedding: Float32 = unit(rows.sum(axis=0)[None])[0]
        return embedding
