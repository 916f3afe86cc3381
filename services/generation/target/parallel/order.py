"""Orders of rank 0 to the others: an order's words, int32, begin with its kind."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from services.generation.target.parallel.link import Link
from services.generation.target.rows import Rows

Int32 = NDArray[np.int32]

FIRST_WORDS = 1024  # in the first message of an order; the rest follows in a second one
_ROWS = (
    "tokens", "positions", "slots", "sequences", "contiguous", "branch_starts", "branches", "tables", "adapter_slots",
    "wanted",
)  # fmt: skip


class Kind(IntEnum):
    """The kind of an order."""

    STOP = 0
    ANSWER = 1  # say that this rank is there
    FORWARD = 2
    MOVE = 3
    EMBED = 4
    PROBE = 5


def give(link: Link, kind: Kind, arrays: Sequence[Int32] = ()) -> None:
    """On rank 0. Raises RankLost."""
    words = np.concatenate([[kind, len(arrays), *map(len, arrays)], *arrays]).astype(np.int32)
    first = np.zeros(FIRST_WORDS, np.int32)
    first[0] = len(words)
    first[1 : len(words) + 1] = words[: FIRST_WORDS - 1]
    link.broadcast(first)
    if len(words) >= FIRST_WORDS:
        link.broadcast(words[FIRST_WORDS - 1 :].copy())


def take(link: Link) -> tuple[Kind, list[Int32]]:
    """On other ranks: wait for the next order. Raises RankLost."""
    first = np.zeros(FIRST_WORDS, np.int32)
    link.broadcast(first)
    words = first[1 : first[0] + 1]
    if first[0] >= FIRST_WORDS:
        rest = np.zeros(first[0] + 1 - FIRST_WORDS, np.int32)
        link.broadcast(rest)
        words = np.concatenate([words, rest])
    begin = 2 + int(words[1])
    borders = accumulate(words[2:begin].tolist(), initial=begin)
    return Kind(int(words[0])), [words[first:last] for first, last in pairwise(borders)]


def arrays_of(rows: Rows) -> list[Int32]:
    """The rows of a pass as arrays of an order."""
    fields = (getattr(rows, name) for name in _ROWS)
    flat = [np.empty(0, np.int32) if field is None else field.reshape(-1).astype(np.int32) for field in fields]
    return [np.array(rows.tables.shape, np.int32), *flat]


def rows_of(arrays: Sequence[Int32]) -> Rows:
    """The rows that `arrays_of` was given."""
    shape, *flat = arrays
    fields = {name: np.ascontiguousarray(array) for name, array in zip(_ROWS, flat, strict=True)}
    adapters = fields.pop("adapter_slots")
    return Rows(
        tokens=fields.pop("tokens").astype(np.int64),
        tables=fields.pop("tables").reshape(shape.tolist()),
        adapter_slots=adapters if len(adapters) else None,
        **fields,
    )
