"""Token shards being written: documents laid out one after another, sorted and written whenever a shard is full."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pydivsufsort
from numpy.typing import NDArray

from services.generation.drafting.retrieval.manifest import Blob, token_dtype
from services.generation.target.arrays import Bytes, Int32, Int64

_PIECE = 1 << 20  # entries of the sorted array in one step
_COUNTED = 1 << 18  # tokens that are counted at a time: counting widens them


class ShardWriter:
    """Holds one shard; the ones before it are on disk."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int, passage_tokens: int) -> None:
        self._folder, self._separator = folder, vocab_size
        self._room, self._passage_tokens = shard_tokens, passage_tokens
        self._flat: NDArray[Any] = np.empty(shard_tokens + shard_tokens // 8 + 1, token_dtype(vocab_size))
        self._end = 0  # of its used part, separators included
        self._tokens = 0  # of them, without separators
        self._starts, self._lengths = array("q"), array("q")  # of the documents in it
        self._passages: list[Int64] = []
        self.shards: list[tuple[Blob, Blob]] = []
        self.counts: Int64 = np.zeros(vocab_size, np.int64)
        """How often each token occurs in the shards that are written, [vocab]."""

    @property
    def passages(self) -> Int64:
        """Passages of the shards that are written, [count, 3]: shard, first token, tokens."""
        return np.concatenate(self._passages)

    def take(self, tokens: NDArray[Any]) -> None:
        """A document; one longer than a shard is continued in the next. Raises OSError."""
        for first in range(0, max(len(tokens), 1), self._room):
            part = tokens[first : first + self._room]
            if self._tokens + len(part) > self._room:
                self.end()
            self._lay(part)

    def _lay(self, part: NDArray[Any]) -> None:
        after = self._end + len(part)
        while after >= len(self._flat):
            self._flat = np.concatenate([self._flat, np.empty_like(self._flat)])
        self._flat[self._end : after] = part
        self._flat[after] = self._separator
        self._starts.append(self._end)
        self._lengths.append(len(part))
        self._end, self._tokens = after + 1, self._tokens + len(part)

    def end(self) -> None:
        """Write the shard, if it has a token. Raises OSError."""
        if not self._tokens:
            return
        number, flat = len(self.shards), self._flat[: self._end]
        names = f"tokens-{number:05}.npy", f"suffixes-{number:05}.npy"
        np.save(self._folder / names[0], flat)
        with (self._folder / names[1]).open("wb") as file:
            _write_suffixes(flat, file)
        self.shards.append((Blob.of(self._folder, names[0]), Blob.of(self._folder, names[1])))
        self._passages.append(self._cut(number))
        for first in range(0, len(flat), _COUNTED):
            counted = np.bincount(flat[first : first + _COUNTED], minlength=self._separator + 1)
            self.counts += counted[: self._separator]
        self._starts, self._lengths = array("q"), array("q")
        self._end = self._tokens = 0

    def _cut(self, shard: int) -> Int64:
        """Passages of the shard's documents; none of an empty document."""
        size, starts, lengths = self._passage_tokens, np.array(self._starts), np.array(self._lengths)
        counts = -(-lengths // size)
        owner = np.repeat(np.arange(len(counts)), counts)
        firsts = size * (np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts))
        tokens = np.minimum(size, lengths[owner] - firsts)
        return np.stack([np.full(len(owner), shard, np.int64), starts[owner] + firsts, tokens], axis=1)


def _write_suffixes(tokens: NDArray[Any], file: BinaryIO) -> None:
    """The array is written as `numpy.save` does; a mapping would end the process on a full disk."""
    header = {"descr": "<i4", "fortran_order": False, "shape": tokens.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for piece in sorted_suffixes(tokens):
        file.write(piece.astype("<i4", copy=False).data)


def sorted_suffixes(tokens: NDArray[Any]) -> Iterator[Int32]:
    """Positions in the order of the suffixes of `tokens` [n], one after another in pieces: int32, n in all.

    The suffixes of the tokens' bytes are sorted, highest byte first, and positions within a token left out: the
    array of a shard of uint16 tokens takes eight bytes a token while it is made.
    """
    width = max(1, (int(tokens.max()).bit_length() + 7) // 8)
    in_bytes = pydivsufsort.divsufsort(_big_endian(tokens, width))
    for first in range(0, len(in_bytes), _PIECE):
        piece = in_bytes[first : first + _PIECE]
        yield (piece[piece % width == 0] // width).astype(np.int32, copy=False)


def _big_endian(tokens: NDArray[Any], width: int) -> Bytes:
    size = tokens.dtype.itemsize
    all_bytes = tokens.astype(tokens.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, size)
    return np.ascontiguousarray(all_bytes[:, size - width :]).reshape(-1)
