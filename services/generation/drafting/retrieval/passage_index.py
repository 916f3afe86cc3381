"""The FAISS index over a datastore's passage embeddings, read where it lies."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.retrieval.datastore_error import StoreInvalid

_PROBES = 16  # inverted lists that a search reads


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

        It runs on the calling thread alone. OpenMP's threads spin: where something else needs one of their cores, a
        search takes sixteen milliseconds in place of one.
        """
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            _, found = self._index.search(embedding[None], count)
        finally:
            faiss.omp_set_num_threads(threads)
        nearest: NDArray[np.int64] = found[0][found[0] >= 0]
        return nearest
