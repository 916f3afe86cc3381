"""Ranks of a model as threads of one process, and what each of them computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.program.share import Share

Float32 = NDArray[np.float32]
_Found = TypeVar("_Found")
_SECONDS = 60.0


class ThreadPeers:
    """`Peers` that meet in memory; a rank that fails lets the others fail too."""

    def __init__(self, share: Share, barrier: threading.Barrier, parts: list[Float32]) -> None:
        self.share, self.barrier, self._parts = share, barrier, parts

    def all_gather(self, part: Float32, out: Float32) -> None:
        self._meet(part, out)

    def gather(self, part: Float32, out: Float32) -> None:
        self._meet(part, out if self.share.rank == 0 else None)

    def _meet(self, part: Float32, out: Float32 | None) -> None:
        self._parts[self.share.rank] = part
        self.barrier.wait(_SECONDS)
        if out is not None:
            out[:] = np.concatenate(self._parts)
        self.barrier.wait(_SECONDS)


def on_ranks(ranks: int, work: Callable[[ThreadPeers], _Found]) -> list[_Found]:
    """The results of the work on each rank, done at the same time."""
    barrier, parts = threading.Barrier(ranks), [np.empty(0, np.float32)] * ranks

    def run(rank: int) -> _Found:
        try:
            return work(ThreadPeers(Share(rank, ranks), barrier, parts))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))
