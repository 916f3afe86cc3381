"""Between operations of a pass: ranks that each hold some columns of a layer's output give them to each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.generation.target.canonical.kernels.storages import PANEL, padded
from services.generation.target.canonical.program.memory import ReusedMemory, on_huge_pages
from services.generation.target.canonical.program.share import Share
from services.generation.target.rows import Rows

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


class Peers(Protocol):
    """The ranks of a model. All of them make the same calls in the same order.

    Raises RankLost where another one cannot be reached any more.
    """

    @property
    def share(self) -> Share: ...

    def all_gather(self, part: Float32, out: Float32) -> None:
        """`out` [ranks * size] = the parts [size] of all ranks, one after another."""
        ...

    def gather(self, part: Float32, out: Float32) -> None:
        """The same on rank 0; others leave `out` as it is."""
        ...


class Alone:
    """One rank, which has no peers."""

    share = Share()

    def all_gather(self, part: Float32, out: Float32) -> None:
        out[:] = part

    gather = all_gather


Step = Callable[[Rows], None]


class Exchange:
    """Memory for what this rank computes of a line, and the steps that make lines whole. Used by one thread."""

    def __init__(self, peers: Peers | None = None) -> None:
        self.peers: Peers = peers or Alone()
        self.share = self.peers.share
        self._parts: dict[tuple[int, int], Float32] = {}
        self._received, self._logits = ReusedMemory(), ReusedMemory()
        self._owners = np.empty(0, np.int64)

    def part(self, whole: Float32, columns: Sequence[range]) -> Float32:
        """Lines for this rank's columns of `whole`, which they are where there is one rank; all ranks' are as wide."""
        return whole if self.share.ranks == 1 else self._lines(len(whole), max(map(len, columns)))

    def step(self, part: Float32, whole: Float32, columns: Sequence[range], times: int = 1) -> Step:
        """Columns of `whole`, in `times` lines of each row, become what each rank has in its `part`."""

        def run(rows: Rows) -> None:
            count = times * len(rows)
            received = self._all(part, count)
            for parts, some in zip(received, columns, strict=True):
                whole[:count, some.start : some.stop] = parts[:, : len(some)]

        return run

    def picking(self, part: Float32, whole: Float32) -> Step:
        """Each line of `whole` becomes that of the rank that holds the row's token, as `held_tokens` found."""

        def run(rows: Rows) -> None:
            whole[: len(rows)] = self.picked(part[: len(rows)])

        return run

    def picked(self, part: Float32) -> Float32:
        """The lines [tokens, size] of the ranks that hold the tokens."""
        if self.share.ranks == 1:
            return part
        return self._all(np.ascontiguousarray(part), len(part))[self._owners, np.arange(len(part))]

    def whole_part(self, whole: Float32) -> Float32:
        """Lines as wide as `whole`, for `picking`."""
        return whole if self.share.ranks == 1 else self._lines(*whole.shape)

    def held_tokens(self, tokens: Int64, vocabulary: int) -> Int64:
        """Places of tokens among those that this rank holds; of others any place."""
        if self.share.ranks == 1:
            return tokens
        own, borders = self.share.of(vocabulary), [each.stop for each in self.share.all(vocabulary)]
        self._owners = np.searchsorted(borders, tokens, side="right")
        return np.clip(tokens - own.start, 0, len(own) - 1)

    def whole_logits(self, part: Float32, vocabulary: int) -> Float32:
        """[rows, vocabulary] of parts [rows, width], on rank 0; on others their part."""
        columns, (rows, width) = self.share.all(vocabulary), part.shape
        if self.share.ranks == 1 or not rows:
            return part[:, :vocabulary]
        received = self._received.take(self.share.ranks * rows if self.share.rank == 0 else 0, width)
        self.peers.gather(part.reshape(-1), received.reshape(-1))
        if self.share.rank:
            return part
        logits = self._logits.take(rows, vocabulary)
        for parts, some in zip(received.reshape(-1, rows, width), columns, strict=True):
            logits[:, some.start : some.stop] = parts[:, : len(some)]
        return logits

    def _all(self, part: Float32, count: int) -> Float32:
        """[ranks, count, width]"""
        width = part.shape[1]
        received = self._received.take(self.share.ranks * count, width)
        self.peers.all_gather(part[:count].reshape(-1), received.reshape(-1))
        return received.reshape(-1, count, width)

    def _lines(self, count: int, size: int) -> Float32:
        size = padded(size, PANEL)
        if (count, size) not in self._parts:
            memory = on_huge_pages(4 * count * size).view(np.float32).reshape(count, size)
            self._parts[count, size] = memory
        return self._parts[count, size]
