"""The FAISS index over passage embeddings: all are looked at while they are few, then a graph is mapped from disk, then
there are codes.
"""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.retrieval.errors import StoreInvalid
from services.generation.drafting.retrieval.passage_vectors import PassageVectors

FLAT_UP_TO = 50_000
HNSW_UP_TO = 2_000_000
_LINKS = 32  # of a node of the graph (M of Malkov & Yashunin 2018)
_CODE_BYTES = 32
_TRAINED = 64  # vectors a list that its centre is found by
_PROBES = 16  # inverted lists that a search reads


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


class PassageIndex:
    """A written index. Reads are safe from any thread."""

    def __init__(self, path: Path, dimensions: int, passages: int) -> None:
        """Raises StoreInvalid if the file is no index of so many passages in so many dimensions."""
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise StoreInvalid(f"{path}: not an index: {str(error).splitlines()[0]}") from error
        if (self._index.d, self._index.ntotal) != (dimensions, passages):
            raise StoreInvalid(
                f"{path}: {self._index.ntotal} vectors of {self._index.d} dimensions; the embedder's have "
                f"{dimensions} and the store has {passages} passages; build the datastore again"
            )
        if isinstance(self._index, faiss.IndexIVF):
            self._index.nprobe = _PROBES

    def nearest(self, embedding: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """The `count` nearest passages, best first; fewer where there are fewer.

        On the calling thread alone: OpenMP's threads spin, and where something else needs one of their cores a search
        of one millisecond takes sixteen.
        """
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            _, found = self._index.search(embedding[None], count)
        finally:
            faiss.omp_set_num_threads(threads)
        nearest: NDArray[np.int64] = found[0][found[0] >= 0]
        return nearest
