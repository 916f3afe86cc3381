"""The forms of keys and values in a block of the cache, and moves of the accepted path."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.kernels.code import I64, POINTER, Code, Value
from services.generation.target.kernels.machine import Machine
from services.generation.target.kernels.records import Kernel


@dataclass(frozen=True, slots=True)
class Products:
    """The functions of a block's arithmetic, `scores` and `mixes` by the number of heads. Calls are within `registers`.

    scores(keys, queries, stride, dim, out, ahead): out [heads][BLOCK] float32, of queries `stride` bytes apart. As many
    bytes as the keys have are prefetched from `ahead`.

    weights(scores, heads, low, high, to, stride, values, padded): each head's scores become weights for `mixes`, of
    exp(score - largest), +0 outside [low, high); to[0] = the largest score, to[1] = the sum of the exponentials, by
    halves of the block down to one. Results of heads are `stride` bytes apart.

    mixes(values, padded, low, high, weights, out, stride, ahead): out[h] [padded] float32, `stride` bytes apart, is the
    sum of values of positions [low, high) times the weights of head h. As many bytes as the values have are prefetched
    from `ahead`.
    """

    scores: dict[int, Any]
    weights: Any
    mixes: dict[int, Any]
    registers: Callable[[Code], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True, slots=True)
class Place:
    """A position's key or value: the address of its block's, and its offset among them in positions."""

    block: Value
    offset: Value


@dataclass(frozen=True, slots=True)
class CacheArrays:
    """The dtype of keys and values, and the shapes of their arrays."""

    kind: np.dtype[Any]
    keys: tuple[int, ...]
    values: tuple[int, ...]


class Form(Protocol):
    """A form of the keys and values of a key head in a block of the cache, and its arithmetic."""

    @property
    def name(self) -> str: ...

    @property
    def lines(self) -> Lines:
        """The form of the inputs of convolutions and states."""

    def arrays(self, layers: int, blocks: int, kv_heads: int, key: int, value: int) -> CacheArrays: ...

    def key_bytes(self, c: Code, dim: Value) -> Value:
        """Bytes of a block's keys of one head."""

    def value_bytes(self, c: Code, padded: Value) -> Value: ...

    def store_query(self, kernel: Kernel, head_buffer: Value, to: Value, scale: Value) -> None:
        """Store the rotated head in `head_buffer`, times its scale, in a line of `padded` float32."""

    def store_key(self, kernel: Kernel, head_buffer: Value, to: Place) -> None: ...

    def store_value(self, kernel: Kernel, head_buffer: Value, to: Place) -> None: ...

    def copy_key(self, c: Code, source: Place, target: Place, dim: Value) -> None: ...

    def copy_value(self, c: Code, source: Place, target: Place, padded: Value) -> None: ...

    def products(self, module: ir.Module, machine: Machine) -> Products: ...


class Lines(Form, Protocol):
    """A form of plain numbers."""

    @property
    def size(self) -> int:
        """Bytes of an element."""

    def load(self, c: Code, pointer: Value, offset: Value | int, lanes: int = 1) -> Value:
        """Elements as float32; the offset is in bytes."""

    def store(self, c: Code, value: Value, pointer: Value, offset: Value | int) -> None: ...


def build_move(module: ir.Module, machine: Machine, form: Form, name: str) -> None:
    """Add `name`(keys, values, layers, blocks, kv_heads, dim, padded, sources, targets, count), which copies slots in
    order; sources and targets int64 [count].
    """
    kinds = (POINTER, POINTER, I64, I64, I64, I64, I64, POINTER, POINTER, I64)
    c = Code(module, machine, name, kinds, exported=True)
    keys, values, layers, blocks, kv_heads, dim, padded, sources, targets, count = c.arguments
    key_bytes, value_bytes = form.key_bytes(c, dim), form.value_bytes(c, padded)
    with c.loop(layers) as layer, c.loop(count) as number:
        slots = [c.word(array, number) for array in (sources, targets)]
        first = [c.mul(c.add(c.mul(layer, blocks), c.div(slot, BLOCK)), kv_heads) for slot in slots]
        with c.loop(kv_heads) as kv:

            def places(array: Value, size: Value) -> tuple[Place, Place]:
                source, target = (
                    Place(c.at(array, c.mul(c.add(f, kv), size)), c.rem(slot, BLOCK))
                    for f, slot in zip(first, slots, strict=True)
                )
                return source, target

            form.copy_key(c, *places(keys, key_bytes), dim)
            form.copy_value(c, *places(values, value_bytes), padded)
    c.done()
