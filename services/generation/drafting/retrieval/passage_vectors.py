"""The embeddings of a datastore's passages, computed as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.retrieval.embedding import Embedder, Float32

_BLOCK = 4096  # vectors handed on at a time


@dataclass(frozen=True, slots=True)
class PassageVectors:
    """`tokens` are the shards' files, `table` [passages, 3] as in a datastore: shard, first token, tokens."""

    embedder: Embedder
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
