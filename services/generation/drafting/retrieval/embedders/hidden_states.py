"""Passages and requests as the mean of the base's hidden states after some of its layers, rare tokens counting more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.retrieval.embedders.embedder import Embedding, Float32, unit
from services.generation.target.blocks import blocks_for
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target

_ROWS = 1024  # of a pass over passages


class HiddenStates:
    """`Embedder` by the canonical pass itself: a vector's bits depend on its own tokens alone, not on its batch.

    Borrows blocks of the target's cache for the time of a call, on the target's own thread.
    """

    def __init__(self, embedding: Embedding, target: Target, weights: Float32, window: int) -> None:
        """weights [vocab] of tokens; `window` is how many tokens of a request's end are read."""
        assert embedding.layer is not None
        self.embedding = embedding
        self._target, self._layer, self._weights = target, embedding.layer, weights
        self._window = min(window, target.config.context_length)

    @property
    def dimensions(self) -> int:
        return self._target.config.hidden_size

    def passages(self, tokens: NDArray[Any], table: NDArray[np.int64]) -> Iterator[Float32]:
        """Raises CacheFull where the cache has no room for a single passage."""
        texts = [tokens[first : first + min(count, self._window)].tolist() for _, first, count in table.tolist()]
        for batch in self._batches(texts):
            yield self._embedded(batch)

    def request(self, tokens: NDArray[np.int64]) -> Float32:
        if not len(tokens):
            return np.zeros(self.dimensions, np.float32)
        embedding: Float32 = self._embedded([tokens[-self._window :].tolist()])[0]
        return embedding

    def _batches(self, texts: list[list[int]]) -> Iterator[list[list[int]]]:
        """As many at a time as a pass and the free part of the cache hold, one at least."""
        batch: list[list[int]] = []
        rows = blocks = 0
        for text in texts:
            rows, blocks = rows + len(text), blocks + blocks_for(len(text))
            if batch and (rows > _ROWS or blocks > self._target.blocks.free):
                yield batch
                batch, rows, blocks = [], len(text), blocks_for(len(text))
            batch.append(text)
        if batch:
            yield batch

    def _embedded(self, texts: Sequence[list[int]]) -> Float32:
        """[texts, hidden] of token ids, none of them empty."""
        pool, rows = self._target.blocks, RowsBuilder()
        tables: list[list[int]] = [[] for _ in texts]
        try:
            for table, text in zip(tables, texts, strict=True):
                pool.extend(table, len(text))
                rows.add_chunk(table, 0, text, False)
            features = self._target.forward(rows.build(), (self._layer,)).features
        finally:
            for table in tables:
                pool.release(table)
        counts = np.array([len(text) for text in texts])
        starts = np.cumsum(counts) - counts
        weights = self._weights[np.concatenate(texts)]
        weights[starts[counts > 1]] = 0.0  # the attention sink at position 0 says nothing of the text
        pooled: Float32 = np.add.reduceat(features * weights[:, None], starts, axis=0)
        return unit(pooled)
