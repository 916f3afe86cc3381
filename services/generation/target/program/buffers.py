"""The memory of passes: huge pages, buffers, the cache of keys and values."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Bytes, Float32
from services.generation.target.blocks import blocks_for
from services.generation.target.config.layer_specs import CachedSizes, LayerSizes, LayerSpec
from services.generation.target.family import Experts
from services.generation.target.kernels.attention import layout
from services.generation.target.kernels.attention.form import Form
from services.generation.target.kernels.attention.layout import LANES
from services.generation.target.kernels.linear import linear
from services.generation.target.kernels.storages import PANEL, SLACK, padded
from services.generation.target.rows import Rows
from services.generation.target.sizes import MOST_RANK, STATE_LANES
from services.generation.target.states import MOST_PASSING, MOST_STEPS

_PAGE = 1 << 21
_CHUNK = 16 * _PAGE  # a mapping for small pieces: a page for each would be mostly empty
_BORDER = 4096  # the alignment of pieces in bytes
_SMALL = 1 << 20  # floats up to which memory is allocated as the allocator likes
_KEPT, _SPARE = 1 << 22, 4
"""Floats up to which memory is always reused, and the largest ratio of larger memory to the wanted size."""


class _Chunk:
    """A mapping from which pieces are allocated. It is unmapped when all of them are deleted."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._used = 0
        self._lock = threading.Lock()

    def piece(self, count: int) -> Bytes:
        size = padded(count, _BORDER)
        with self._lock:
            if self._used + size > len(self._memory):
                self._memory, self._used = _mapped(_CHUNK), 0
            first, self._used = self._used, self._used + size
            return self._memory[first : first + count]


_chunk = _Chunk()


def unmap(memory: NDArray[Any]) -> None:
    """Drop the whole pages of a contiguous array from this process, if they are of a file that is mapped for reading:
    they come from the file again when they are read.
    """
    base: Any = memory
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview) and base.readonly and isinstance(base.obj, mmap.mmap):
        _discard(memory.ctypes.data, memory.nbytes)


def _discard(address: int, count: int) -> None:
    """Return the whole pages of `count` bytes of a mapping on small pages to the system, if it is Linux: there they are
    zeros, or a file's bytes, when they are used again.
    """
    first, size = padded(address, mmap.PAGESIZE), mmap.PAGESIZE
    pages = (address + count - first) // size
    if sys.platform == "linux" and pages > 0:
        _madvise()(first, pages * size, mmap.MADV_DONTNEED)


@functools.cache  # an idle engine discards thousands of parts, and finding the function takes longer than a call
def _madvise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return madvise


def return_freed_memory() -> None:
    """Return freed memory to the system, as glibc's allocator does only at the end of its heap."""
    with suppress(AttributeError, OSError):  # another allocator
        ctypes.CDLL(None).malloc_trim(0)


def on_huge_pages(count: int) -> Bytes:
    """`count` zero bytes; kernels may prefetch SLACK bytes after them."""
    return _mapped(count) if count > _CHUNK // 4 else _chunk.piece(count)


def on_small_pages(count: int) -> Bytes:
    """`count` zero bytes, as above, of which only used ones take memory: on huge pages, a token in a cache takes 2 MiB
    of each layer's keys, and of its values.
    """
    return _mapped(count, "MADV_NOHUGEPAGE")


def _mapped(count: int, advice: str = "MADV_HUGEPAGE") -> Bytes:
    size = padded(count + SLACK, _PAGE) + _PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # private pages can be huge
    if hasattr(mmap, advice):
        memory.madvise(getattr(mmap, advice))
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % _PAGE
    return array[start : start + count]


def _whole_mapping(count: int) -> Float32:
    """`count` floats, unmapped when deleted: glibc's allocator would keep them for later allocations."""
    return _mapped(4 * count).view(np.float32)


class _Lease:
    """The owner of an array's memory, which is freed for reuse when the array and all its views are deleted."""

    def __init__(self, memory: Float32, rows: int, size: int, free: list[Float32]) -> None:
        self.__array_interface__ = {**memory.__array_interface__, "shape": (rows, size)}
        self._memory, self._free = memory, free

    def __del__(self) -> None:
        self._free.append(self._memory)


class ReusedMemory:
    """Allocates arrays whose memory is reused once they, and all views of them, are deleted, unless it is far too
    large. Used by one thread.
    """

    def __init__(self) -> None:
        self._free: list[Float32] = []

    def take(self, rows: int, size: int) -> Float32:
        """An uninitialised array [rows, size]."""
        memory = self._free.pop() if self._free else np.empty(0, np.float32)
        wanted = rows * size
        if memory.size < wanted or memory.size > max(_KEPT, _SPARE * wanted):
            memory = _whole_mapping(wanted) if wanted > _SMALL else np.empty(wanted, np.float32)
        return np.asarray(_Lease(memory, rows, size, self._free))

    def release(self) -> None:
        """Free the memory of deleted arrays."""
        self._free.clear()


@dataclass(frozen=True, slots=True, eq=False)
class CacheGroup:
    """Keys and values of layers of the same sizes, [layers, blocks, kv_heads, ...]; `value` is padded."""

    form: Form
    key: int
    value: int
    keys: NDArray[Any]
    values: NDArray[Any]

    @classmethod
    def empty(cls, form: Form, layers: int, blocks: int, sizes: CachedSizes) -> CacheGroup:
        form = form if sizes.key else form.lines
        arrays = form.arrays(layers, blocks, sizes.kv_heads, sizes.key, sizes.value)
        keys, values = (
            on_small_pages(arrays.kind.itemsize * int(np.prod(shape))).view(arrays.kind).reshape(*shape)
            for shape in (arrays.keys, arrays.values)
        )
        return cls(form, sizes.key, padded(sizes.value, LANES), keys, values)


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """For each layer: keys and values [blocks, kv_heads, ...], its own or another layer's; cosines and sines of its
    rotation, [positions, frequencies]; factors of its queries, [positions].

    Inputs of convolutions and of states are values without keys. Some states are cached, too.
    """

    form: Form
    groups: Sequence[CacheGroup]
    keys: Sequence[NDArray[Any]]
    values: Sequence[NDArray[Any]]
    rotations: Sequence[tuple[Float32, Float32]]
    scales: Sequence[Float32]
    states: Mapping[int, Float32]  # [kept, size], by layer that folds states

    @classmethod
    def empty(
        cls, layers: Sequence[LayerSpec], blocks: int, rotations: Sequence[tuple[Float32, Float32]],
        scales: Sequence[Float32], form: Form, kept: int = 0,
    ) -> Cache:  # fmt: skip
        """A cache of zeros, whose memory is touched when it is used, with `kept` states. `rotations` and `scales`: of
        each layer.
        """
        found: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        groups = []
        own = [number for number, layer in enumerate(layers) if layer.source is None]
        for sizes in dict.fromkeys(layers[number].cached for number in own):
            numbers = [number for number in own if layers[number].cached == sizes]
            group = CacheGroup.empty(form, len(numbers), blocks, sizes)
            groups.append(group)
            found |= {number: (group.keys[place], group.values[place]) for place, number in enumerate(numbers)}
        states = {
            number: on_huge_pages(4 * kept * layer.rule.state).view(np.float32).reshape(kept, layer.rule.state)
            for number, layer in enumerate(layers) if layer.rule
        }  # fmt: skip
        read = [found[number if layer.source is None else layer.source] for number, layer in enumerate(layers)]
        return cls(form, groups, [keys for keys, _ in read], [values for _, values in read], rotations, scales, states)

    def of_layers(self, numbers: Sequence[int]) -> Cache:
        """The same memory for a model of some of the layers."""
        states = {place: self.states[number] for place, number in enumerate(numbers) if number in self.states}
        return replace(
            self,
            keys=[self.keys[number] for number in numbers],
            values=[self.values[number] for number in numbers],
            rotations=[self.rotations[number] for number in numbers],
            scales=[self.scales[number] for number in numbers],
            states=states,
        )

    def discard(self, blocks: range) -> None:
        """Return the memory of blocks to the system. Their content is lost."""
        for group in self.groups:
            for array in (group.keys, group.values):
                layers, count, first = *array.shape[:2], array.ctypes.data
                size = array.nbytes // (layers * count)  # of a block
                for layer in range(layers):
                    _discard(first + (layer * count + blocks.start) * size, len(blocks) * size)

    def block(self, number: int) -> list[NDArray[Any]]:
        """Views of a block's keys and values: for each group, [layers, kv_heads, ...]."""
        return [array[:, number] for group in self.groups for array in (group.keys, group.values)]


class ExpertBuffers:
    """Buffers for pairs of a row and an expert (`kernels.experts`), whose lines are sorted by expert."""

    def __init__(self, experts: Experts, hidden: int, rows: int) -> None:
        pairs, inner = rows * experts.chosen, padded(experts.size, PANEL)
        self.logits = _lines(rows, experts.count)
        self.x, self.y = _lines(pairs, hidden), _lines(pairs, hidden)
        self.gate_up, self.inner = _lines(pairs, 2 * inner), _lines(pairs, inner)
        self.mixed, self.gates = _lines(rows, hidden), _lines(rows, 1)
        self.picks, self.places = np.zeros(pairs, np.int64), np.zeros(pairs, np.int64)
        self.shares, self.ones = np.zeros(pairs, np.float32), np.ones(pairs, np.float32)
        self.starts, self.next = np.zeros(experts.count + 1, np.int64), np.zeros(experts.count, np.int64)


class Buffers:
    """Buffers of passes of up to `rows` rows by up to `members` threads, at positions below `positions`.

    Lines begin at multiples of 64 bytes and are padded with zeros.
    """

    def __init__(
        self,
        sizes: LayerSizes,
        rows: int,
        members: int,
        positions: int,
        *,
        widest: int = 0,
        experts: Experts | None = None,
        layers: Sequence[LayerSpec],
    ) -> None:
        """`widest`: the most inputs of linear layers outside of decoder layers."""
        dim = max(padded(layer.head_dim, layout.LANES) for layer in layers)
        group_size = max(layer.heads // max(layer.kv_heads, 1) for layer in layers)
        inner = padded(max(sizes.intermediate_size, experts.shared if experts else 0), PANEL)
        self.rows, self.members, self.positions = rows, members, positions
        self.x, self.normed, self.update = (self.lines(sizes.hidden_size) for _ in range(3))
        self.qkv = self.lines(max(sum(module.outputs for module in layer.qkv) for layer in layers))
        queries = max(layer.heads * padded(layer.head_dim, layout.LANES) for layer in layers)
        self.queries = on_huge_pages(4 * rows * queries).view(np.float32).reshape(rows, queries)
        self._mixed: dict[int, Float32] = {}
        self.gate_up, self.inner = self.lines(2 * inner), self.lines(inner)
        self.experts = ExpertBuffers(experts, sizes.hidden_size, rows) if experts else None
        widest = max(widest, sizes.hidden_size, *(module.inputs for layer in layers for module in layer.modules))
        attending = layout.scratch_bytes(group_size, dim)
        rules = [layer.rule for layer in layers if layer.rule]
        self.folded = _lines(MOST_STEPS, max(rule.folded for rule in rules)) if rules else None
        folding = 4 * STATE_LANES * MOST_PASSING * max((rule.key_dim for rule in rules), default=0)
        adapting = 4 * (MOST_RANK + padded(max(2 * inner, self.qkv.shape[1]), PANEL))
        self.scratch_size = padded(max(linear.scratch_bytes(widest), attending, folding, adapting), 4096)
        self.scratch = on_huge_pages(self.scratch_size * members)
        self.blocks = blocks_for(positions)  # the most that a row sees; a table has more for a tree at its end
        self.partial = on_huge_pages(layout.most_split(members) * self.blocks * group_size * layout.result_bytes(dim))

    def check(self, rows: Rows) -> None:
        """Check, before any kernel runs, that a pass fits the buffers.

        Raises:
            ValueError: it has too many rows, or a row is at, or sees, a position after the last one.
        """
        if len(rows) > self.rows:
            raise ValueError(f"a pass of {len(rows)} rows; expected at most {self.rows}")
        positions, lengths = rows.positions.tolist(), rows.lengths.tolist()  # numpy is slower for few numbers
        if positions and not 0 <= min(positions) <= max(positions) < self.positions:
            raise ValueError(f"a row at position {max(positions)}; expected 0 to {self.positions - 1}")
        if lengths and not 1 <= min(lengths) <= max(lengths) <= self.positions:
            raise ValueError(f"a row sees {max(lengths)} positions; expected 1 to {self.positions}")

    @property
    def scratch_fields(self) -> dict[str, object]:
        """The fields of a record for the members' scratch."""
        return {"scratch": self.scratch, "scratch_size": self.scratch_size}

    def mixed(self, size: int) -> Float32:
        """Results of attention: lines of `size` values, whose padding is never written."""
        if size not in self._mixed:
            self._mixed[size] = self.lines(size)
        return self._mixed[size]

    def lines(self, size: int) -> Float32:
        """A line of at least `size` values for each row."""
        return _lines(self.rows, size)


def _lines(count: int, size: int) -> Float32:
    size = padded(size, PANEL)
    return on_huge_pages(4 * count * size).view(np.float32).reshape(count, size)
