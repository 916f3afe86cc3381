"""Tokens drawn from rows of logits: those of a pass together, in one call without the interpreter's lock."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from services.generation.engine.numba_cache import compiled
from services.generation.engine.request import SamplingParams
from services.generation.engine.sampling.filters import DRAW, Draw, candidates
from services.generation.engine.sampling.race import GROUP, Row, look, noisy_argmax
from services.generation.target.arrays import Float32, Int32, Int64, address

_DRAW = struct.Struct("=dddqQqq")  # as DRAW
_FOUND = np.dtype(
    [
        ("token", np.int64), ("best", np.float64), ("second", np.float64), ("fault", np.int64),  # of `Row`
        ("drawn", np.int64),
    ]
)  # fmt: skip


class Drawn(NamedTuple):
    """A row, and the token drawn from it; it means nothing where the row has a fault."""

    row: Row
    token: int


def draw(params: SamplingParams, choice: int, position: int, *, greedy: bool = False) -> bytes:
    """A record of dtype DRAW; `greedy`: at temperature 0, whatever the parameters."""
    temperature = 0.0 if greedy else params.temperature
    return _DRAW.pack(temperature, params.top_p, params.min_p, params.top_k, params.seed, choice, position)


def draw_rows(logits: Float32, rows: Sequence[int], draws: Sequence[bytes]) -> list[Drawn]:
    """Look at some rows of logits [any, vocab_size], and draw a token from each as its entry of `draws` says."""
    if not rows:
        return []
    assert logits.strides[1] == logits.itemsize == 4, "rows are read where they lie"
    count, size = len(rows), logits.shape[1]
    places = address(logits) + logits.strides[0] * np.array(rows, np.int64)
    peaks, found = np.empty((count, -(-size // GROUP)), np.int32), np.empty(count, _FOUND)
    _draw_all(places, size, np.frombuffer(b"".join(draws), DRAW), peaks, found)
    return [
        Drawn(Row(logits[row], peaks[i], token, best, second, fault), drawn)
        for i, (row, (token, best, second, fault, drawn)) in enumerate(zip(rows, found.tolist(), strict=True))
    ]


@intrinsic
def _at(_: Any, address: Any) -> Any:
    """The memory at an address, for `carray`."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@compiled
def _draw_all(places: Int64, size: int, draws: NDArray[Any], peaks: Int32, found: NDArray[Any]) -> None:
    """`places` [count] are addresses of rows: an array of rows with gaps between them would be a type of its own, for
    which numba compiles all again. Fills `peaks` [count, groups] and `found` [count].
    """
    for i in range(places.shape[0]):
        row = look(carray(_at(places[i]), size, np.float32), peaks[i])  # type: ignore[call-arg]
        found[i].token, found[i].best, found[i].second, found[i].fault = row.token, row.best, row.second, row.fault
        found[i].drawn = _drawn(row, draws[i])


@compiled
def _drawn(row: Row, draw: Draw) -> int:
    if row.fault != 0 or draw.temperature == 0.0:
        return row.token
    return noisy_argmax(
        row.logits, row.token, candidates(row, draw), draw.temperature, draw.seed, draw.choice, draw.position
    )
