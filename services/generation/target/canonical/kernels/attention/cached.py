"""The form in which keys and values are kept: `docs/numerics.md`, Cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from services.generation.target.canonical.kernels.code import F32, I16, I32, Code, Value


@dataclass(frozen=True, slots=True)
class Cached:
    """float32 as it is, or rounded to bfloat16 where it is stored and widened where it is read."""

    name: str
    size: int  # bytes of an element

    def load(self, c: Code, pointer: Value, offset: Value | int, lanes: int = 1) -> Value:
        """Elements as float32; the offset is in bytes."""
        if self.size == 4:
            return c.load(pointer, offset, F32, lanes)
        words = ir.VectorType(I32, lanes) if lanes > 1 else I32
        wide = c.b.zext(c.load(pointer, offset, I16, lanes), words)
        return c.b.bitcast(c.b.shl(wide, c.vector(I32, 16, lanes)), ir.VectorType(F32, lanes) if lanes > 1 else F32)

    def store(self, c: Code, value: Value, pointer: Value, offset: Value | int) -> None:
        """Store float32 values, to the nearest bfloat16, ties to even; a NaN stays one."""
        if self.size == 4:
            c.store(value, pointer, offset)
            return
        b = c.b
        lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
        words: Any = ir.VectorType(I32, lanes) if lanes > 1 else I32
        bits = b.bitcast(value, words)
        half = c.vector(I32, 16, lanes)
        odd = b.and_(b.lshr(bits, half), c.vector(I32, 1, lanes))
        rounded = b.lshr(b.add(b.add(bits, c.vector(I32, 0x7FFF, lanes)), odd), half)
        nan = b.or_(b.lshr(bits, half), c.vector(I32, 0x40, lanes))
        kept = b.select(b.fcmp_unordered("uno", value, value), nan, rounded)
        c.store(b.trunc(kept, ir.VectorType(I16, lanes) if lanes > 1 else I16), pointer, offset)


CACHED = {cached.name: cached for cached in (Cached("float32", 4), Cached("bfloat16", 2))}
