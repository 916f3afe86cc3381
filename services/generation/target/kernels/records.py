"""The arguments of kernels: a record of words for each operation of a program, and the words of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from services.generation.target.arrays import Int64, address
from services.generation.target.kernels.code import F32, I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.rows import Part

WORDS = 24  # of 8 bytes in a record
KERNEL, BARRIER = 0, 1
"""The first two words of every record: the address of its kernel, and whether a barrier follows it."""

PASS = (
    "program", "operations", "rows", "wanted", "table_stride", "tokens", *(part.name.lower() for part in Part),
    "steps", "step_taps", "step_rows", "step_sources", "step_targets",
)  # fmt: skip
"""Words of a pass. `rows`, `wanted` and `steps` are counts. Others are addresses of arrays: int64 tokens, and the int32
arrays of `rows.Rows` and `states.Steps`."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "linear": (
        "weights", "x", "x_stride", "y", "y_stride", "bias", "groups", "panels", "unit", "count", "scratch",
        "scratch_size",
    ),
    "embed": ("weights", "groups", "x", "x_stride", "size", "scratch", "scratch_size", "factor"),
    "norm": ("x", "x_stride", "out", "out_stride", "weight", "size", "epsilon", "count", "index"),
    "add": ("x", "x_stride", "y", "y_stride", "panels", "unit", "size"),
    "rotate": (
        "qkv", "qkv_stride", "heads", "kv_heads", "dim", "padded", "cosines", "sines", "turned", "query_norm",
        "key_norm", "value_norm", "epsilon", "scales", "interleaved", "gated", "queries", "keys", "values",
    ),
    "attend": (
        "queries", "heads", "kv_heads", "dim", "padded", "keys", "values", "window", "chunk", "cap", "sinks", "mixed",
        "mixed_stride", "partial", "blocks", "scratch", "scratch_size",
    ),
    "convolve": ("qkv", "qkv_stride", "size", "padded", "values", "weight", "taps", "mixed", "mixed_stride"),
    "fold_inputs": (
        "qkv", "qkv_stride", "key_heads", "value_heads", "key_dim", "value_dim", "padded", "values", "weight", "taps",
        "shifts", "rates", "factor", "folded", "folded_stride", "bias", "delta", "first", "heads_at", "values_at",
    ),
    "fold": (
        "folded", "folded_stride", "key_heads", "value_heads", "key_dim", "value_dim", "tiled", "states", "state_size",
        "kept", "mixed", "mixed_stride", "scratch", "scratch_size", "delta", "queries_at", "keys_at", "values_at",
        "skips",
    ),
    "normed_gate": (
        "mixed", "mixed_stride", "qkv", "qkv_stride", "first", "heads", "dim", "weight", "epsilon", "delta",
    ),
    "head_gate": ("mixed", "mixed_stride", "qkv", "qkv_stride", "heads", "dim"),
    "activate": ("gate_up", "gate_up_stride", "out", "out_stride", "panels", "unit", "times", "slope", "limit"),
    "route": (
        "logits", "logits_stride", "experts", "chosen", "normalised", "sigmoid", "scored", "bias", "factors", "picks",
        "shares", "places", "starts", "next",
    ),
    "gather": ("x", "x_stride", "out", "out_stride", "chosen", "places", "factors", "size"),
    "experts": ("records", "experts", "starts", "x_stride", "y_stride"),
    "gate_rows": ("x", "x_stride", "gates", "gates_stride", "size"),
    "mix": ("y", "y_stride", "out", "out_stride", "chosen", "places", "shares", "size"),
    "low_rank": ("x", "x_stride", "y", "y_stride", "parts", "adapter_parts", "scratch", "scratch_size"),
    "cap": ("y", "y_stride", "panels", "unit", "cap", "count"),
    "copy": ("x", "x_stride", "out", "out_stride", "size"),
    "gate": ("x", "x_stride", "y", "y_stride", "out", "out_stride", "size"),
    "scale": ("x", "x_stride", "size", "factor"),
    "convolve_block": ("x", "x_stride", "deltas", "deltas_stride", "first", "weight", "size", "taps", "group", "block"),
}  # fmt: skip
"""Words of an operation's record after the first two. Strides and sizes of scratch are in bytes, other sizes in
elements; float32 constants are stored as their bits. `count` is the index of the pass's word with the number of rows.
"""

_POINTERS = {
    "weights", "x", "y", "bias", "scratch", "out", "weight", "qkv", "cosines", "sines", "query_norm", "key_norm",
    "value_norm", "queries", "keys", "values", "mixed", "partial", "gate_up", "parts", "adapter_parts", "logits",
    "picks", "shares", "places", "starts", "next", "records", "sinks", "scales", "factors", "gates", "shifts", "rates",
    "skips", "folded", "states", "deltas", *(set(PASS) - {"operations", "rows", "wanted", "table_stride", "steps"}),
}  # fmt: skip
_FLOATS = {"epsilon", "factor", "cap", "slope", "limit"}


class Words:
    """The fields of a record inside a kernel: `words.rows` loads one."""

    def __init__(self, code: Code, record: Value, names: tuple[str, ...], first: int) -> None:
        self._code, self._record, self._places = code, record, {n: first + i for i, n in enumerate(names)}

    def __getattr__(self, name: str) -> Value:
        place = 8 * self._places[name]
        kind = POINTER if name in _POINTERS else F32 if name in _FLOATS else I64
        return self._code.load(self._record, place, kind)


class Kernel:
    """An operation under construction: `kernel(record, pass, member, members)`, run by all members of a team."""

    def __init__(self, module: ir.Module, machine: Machine, operation: str, name: str = "") -> None:
        arguments = (POINTER, POINTER, I64, I64)
        self.code = Code(module, machine, name or operation, arguments, exported=True)
        record, pass_, self.member, self.members = self.code.arguments
        self.record = Words(self.code, record, FIELDS[operation], 2)
        self.passed = Words(self.code, pass_, PASS, 0)
        self._pass = pass_

    def rows(self) -> Value:
        """The number of rows: the word of the pass that the record's `count` selects."""
        return self.code.word(self._pass, self.record.count)

    def share(self, units: Value) -> tuple[Value, Value]:
        """This member's range [first, last) of `units` of work."""
        c = self.code
        first = c.div(c.mul(units, self.member), self.members)
        return first, c.div(c.mul(units, c.add(self.member, 1)), self.members)

    def panels(self) -> tuple[Value, Value]:
        """This member's panels of a linear layer, and of operations on its output, which need no barrier after it."""
        unit = self.record.unit
        first, last = self.share(self.code.div(self.record.panels, unit))
        return self.code.mul(first, unit), self.code.mul(last, unit)

    def scratch(self) -> Value:
        """The scratch of this member."""
        return self.code.at(self.record.scratch, self.code.mul(self.member, self.record.scratch_size))


def record_of(operation: str, kernel: int, values: Mapping[str, Any], *, barrier: bool = True) -> Int64:
    """The record of an operation. Arrays become their addresses and must outlive it; missing fields are 0, except
    strides: `x_stride` becomes the bytes between lines of `x`.
    """
    words = np.zeros(WORDS, np.int64)
    words[KERNEL], words[BARRIER] = kernel, barrier
    unknown = values.keys() - set(FIELDS[operation])
    assert not unknown, f"{operation} has no {unknown}"
    for place, name in enumerate(FIELDS[operation], 2):
        array = values.get(name.removesuffix("_stride"))
        words[place] = _word(name, values[name]) if name in values else _stride(array)
    return words


def bind(record: Int64, operation: str, field: str, array: NDArray[Any], column: int = 0) -> None:
    """Point a field of a record, and its stride, at an array from a column on."""
    names = FIELDS[operation]
    record[names.index(field) + 2] = address(array) + array.itemsize * column
    record[names.index(f"{field}_stride") + 2] = _stride(array)


def _stride(array: object) -> int:
    return array.strides[0] if isinstance(array, np.ndarray) and array.ndim > 1 and len(array) else 0


def _word(name: str, value: Any) -> int:
    if isinstance(value, np.ndarray):
        return address(value)
    if name in _FLOATS:
        return int(np.float32(value).view(np.uint32))
    return int(value)


def count_of(name: str) -> int:
    """The index of a word of the pass, as the `count` of a record."""
    return PASS.index(name)
