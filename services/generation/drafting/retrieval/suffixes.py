"""Sorting the suffixes of a shard's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pydivsufsort
from numpy.typing import NDArray

_PIECE = 1 << 20  # entries of the sorted array that are looked at a time


def sorted_suffixes(tokens: NDArray[Any]) -> Iterator[NDArray[np.int32]]:
    """Positions in the order of the suffixes of `tokens` [n], one after another in pieces: int32, n in all.

    The suffixes of the tokens' bytes are sorted, highest byte first, and those that begin within a token left out: the
    array of a shard of uint16 tokens takes eight bytes a token while it is made.
    """
    width = max(1, (int(tokens.max()).bit_length() + 7) // 8)
    in_bytes = pydivsufsort.divsufsort(_big_endian(tokens, width))
    for first in range(0, len(in_bytes), _PIECE):
        piece = in_bytes[first : first + _PIECE]
        yield (piece[piece % width == 0] // width).astype(np.int32, copy=False)


def _big_endian(tokens: NDArray[Any], width: int) -> NDArray[np.uint8]:
    size = tokens.dtype.itemsize
    all_bytes = tokens.astype(tokens.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, size)
    return np.ascontiguousarray(all_bytes[:, size - width :]).reshape(-1)
