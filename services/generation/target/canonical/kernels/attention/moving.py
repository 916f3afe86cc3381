"""Moves keys and values from one slot of the cache to another, for the accepted path of a tree."""

from __future__ import annotations

from llvmlite import ir

from services.generation.target.blocks import BLOCK
from services.generation.target.canonical.kernels.attention.cached import Cached
from services.generation.target.canonical.kernels.code import I8, I16, I32, I64, POINTER, Code
from services.generation.target.canonical.kernels.machine import Machine

_BYTES = 32


def build(module: ir.Module, machine: Machine, cached: Cached) -> None:
    """Add `move`(keys, values, layers, blocks, kv_heads, dim, padded, sources, targets, count), one pair after another.

    keys [layers][blocks][kv_heads][dim][BLOCK], values [layers][blocks][kv_heads][BLOCK][padded]; sources and targets
    int64 [count].
    """
    kinds = (POINTER, POINTER, I64, I64, I64, I64, I64, POINTER, POINTER, I64)
    c = Code(module, machine, "move", kinds, exported=True)
    keys, values, layers, blocks, kv_heads, dim, padded, sources, targets, count = c.arguments
    size = cached.size
    key_bytes, value_bytes, line = c.mul(dim, size * BLOCK), c.mul(padded, size * BLOCK), c.mul(padded, size)
    element = I32 if size == 4 else I16
    with c.loop(layers) as layer, c.loop(count) as number:
        slots = [c.word(array, number) for array in (sources, targets)]
        first = [c.mul(c.add(c.mul(layer, blocks), c.div(slot, BLOCK)), kv_heads) for slot in slots]
        offsets = [c.rem(slot, BLOCK) for slot in slots]
        with c.loop(kv_heads) as kv:
            source, target = (
                c.at(keys, c.add(c.mul(c.add(f, kv), key_bytes), c.mul(o, size)))
                for f, o in zip(first, offsets, strict=True)
            )
            with c.loop(dim) as i:
                at = c.mul(i, size * BLOCK)
                c.store(c.load(source, at, element), target, at)
            source, target = (
                c.at(values, c.add(c.mul(c.add(f, kv), value_bytes), c.mul(o, line)))
                for f, o in zip(first, offsets, strict=True)
            )
            with c.loop(line, step=_BYTES) as at:
                c.store(c.load(source, at, I8, _BYTES), target, at)
    c.done()
