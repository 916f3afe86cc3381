"""The passages of a datastore being built: embedded as they are asked for, and their FAISS index.

All are looked at while they are few, then a graph is mapped from disk, then there are codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.retrieval.input_layer import Float32, InputLayer

FLAT_UP_TO = 50_000
HNSW_UP_TO = 2_000_000
_LINKS = 32  # of a node of the graph (M of Malkov & Yashunin 2018)
_CODE_BYTES = 32
_TRAINED = 64  # vectors a list that its centre is found by
_BLOCK = 4096  # vectors handed on at a time


@dataclass(frozen=True, slots=True)
class PassageVectors:
    """`tokens` are the shards' files, `table` [passages, 3] as in a datastore: shard, first token, tokens."""

    embedder: InputLayer
    tokens: list[Path]
    table: NDArray[np.int64]
    embedded: Callable[[int, int], None]
    """Hears how many passages have been embedded by now, and of how many."""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def dimensions(self) -> int:
        return self.embedder.dimensions

    def blocks(self, step: int = 1) -> Iterator[Float32]:
        """[4096 or, at the end, fewer; dimensions] of every passage, or of each `step`-th."""
        table = self.table[::step]
        waiting: list[Float32] = []
        done = held = 0
        for part in self._parts(table):
            done, held = done + len(part), held + len(part)
            self.embedded(done, len(table))
            waiting.append(part)
            while held >= _BLOCK:
                ready = np.concatenate(waiting)
                yield ready[:_BLOCK]
                waiting, held = [ready[_BLOCK:]], held - _BLOCK
        if held:
            yield np.concatenate(waiting)

    def _parts(self, table: NDArray[np.int64]) -> Iterator[Float32]:
        for number, path in enumerate(self.tokens):
            yield from self.embedder.passages(np.load(path, mmap_mode="r"), table[table[:, 0] == number])


def build_index(vectors: PassageVectors) -> faiss.Index:
    """Inner product over the vectors, which have length 1. The same vectors give the same bytes.

    A flat search reads every vector for each request, and takes as long as its bytes do: in half precision, where
    products of such vectors keep three digits, half as long.
    """
    index: faiss.Index
    dimensions, count = vectors.dimensions, len(vectors)
    if count <= FLAT_UP_TO:
        index = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    elif count <= HNSW_UP_TO:
        index = faiss.IndexHNSWFlat(dimensions, _LINKS, faiss.METRIC_INNER_PRODUCT)
    else:
        lists = int(4 * count**0.5)
        index = faiss.index_factory(dimensions, f"IVF{lists},PQ{_code_bytes(dimensions)}", faiss.METRIC_INNER_PRODUCT)
        index.train(np.concatenate(list(vectors.blocks(max(1, count // (_TRAINED * lists))))))
    for block in vectors.blocks():
        index.add(block)
    return index


def _code_bytes(dimensions: int) -> int:
    return next(size for size in range(min(_CODE_BYTES, dimensions), 0, -1) if dimensions % size == 0)
