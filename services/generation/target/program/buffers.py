"""What passes work in: memory on huge pages, buffers, the cache of keys and values."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Bytes, Float32
from services.generation.target.blocks import blocks_for
from services.generation.target.config.layer_specs import LayerSizes, LayerSpec
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
_CHUNK = 16 * _PAGE  # what small pieces are cut from: a page of its own would leave most of it empty
_BORDER = 4096  # bytes to which pieces are aligned


class _Chunk:
    """A mapping that pieces are cut from, one after another; it goes when all of them have gone."""

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


def on_huge_pages(count: int) -> Bytes:
    """`count` zero bytes; SLACK more behind them may be fetched."""
    return _mapped(count) if count > _CHUNK // 4 else _chunk.piece(count)


def _mapped(count: int) -> Bytes:
    size = padded(count + SLACK, _PAGE) + _PAGE
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # pages shared with nobody can be huge
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    start = -array.ctypes.data % _PAGE
    return array[start : start + count]


class _Lease:
    """What arrays over a piece of memory keep alive; the memory is free again when the last of them has gone."""

    def __init__(self, memory: Float32, rows: int, size: int, free: list[Float32]) -> None:
        self.__array_interface__ = {**memory.__array_interface__, "shape": (rows, size)}
        self._memory, self._free = memory, free

    def __del__(self) -> None:
        self._free.append(self._memory)


class ReusedMemory:
    """Hands out arrays, and their memory again once they, and all views of them, have gone. Used by one thread.

    Each array owns a lease; the end of its life says that the memory is free, however an interpreter counts.
    """

    def __init__(self) -> None:
        self._free: list[Float32] = []

    def take(self, rows: int, size: int) -> Float32:
        """An array [rows, size] of anything."""
        memory = self._free.pop() if self._free else np.empty(0, np.float32)
        if memory.size < rows * size:
            memory = np.empty(rows * size, np.float32)
        return np.asarray(_Lease(memory, rows, size, self._free))


@dataclass(frozen=True, slots=True, eq=False)
class CacheGroup:
    """Keys and values of layers of the same sizes, [layers, blocks, kv_heads, ...]; `value` is padded."""

    form: Form
    key: int
    value: int
    keys: NDArray[Any]
    values: NDArray[Any]

    @classmethod
    def empty(cls, form: Form, layers: int, blocks: int, kv_heads: int, key: int, value: int) -> CacheGroup:
        form = form if key else form.lines
        kind, *shapes = form.empty(layers, blocks, kv_heads, key, value)
        keys, values = (
            on_huge_pages(kind.itemsize * int(np.prod(shape))).view(kind).reshape(*shape) for shape in shapes
        )
        return cls(form, key, padded(value, LANES), keys, values)


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """Each layer's keys and values [blocks, kv_heads, ...], in a form, its own or those of another layer; of a
    convolution its inputs, as values without keys; cosines and sines of its rotation, [positions, frequencies]; the
    factors of its queries, [positions]. What a state is made of lies as inputs of a convolution do, and some states
    beside it.
    """

    form: Form
    groups: Sequence[CacheGroup]
    keys: Sequence[NDArray[Any]]
    values: Sequence[NDArray[Any]]
    rotations: Sequence[tuple[Float32, Float32]]
    scales: Sequence[Float32]
    states: Mapping[int, Float32]  # [kept, size], of layers that fold them

    @classmethod
    def empty(
        cls, layers: Sequence[LayerSpec], blocks: int, rotations: Sequence[tuple[Float32, Float32]],
        scales: Sequence[Float32], form: Form, kept: int = 0,
    ) -> Cache:  # fmt: skip
        """A cache of zeros, in memory that is touched only as it is used; `rotations` and `scales` of each layer;
        `kept` states.
        """
        found: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        groups = []
        own = [number for number, layer in enumerate(layers) if layer.source is None]
        for sizes in dict.fromkeys(layers[number].cached for number in own):
            numbers = [number for number in own if layers[number].cached == sizes]
            group = CacheGroup.empty(form, len(numbers), blocks, *sizes)
            groups.append(group)
            found |= {number: (group.keys[place], group.values[place]) for place, number in enumerate(numbers)}
        states = {
            number: on_huge_pages(4 * kept * layer.rule.state).view(np.float32).reshape(kept, layer.rule.state)
            for number, layer in enumerate(layers) if layer.rule
        }  # fmt: skip
        read = [found[number if layer.source is None else layer.source] for number, layer in enumerate(layers)]
        return cls(form, groups, [keys for keys, _ in read], [values for _, values in read], rotations, scales, states)

    def block(self, number: int) -> list[NDArray[Any]]:
        """Where a block's keys and values lie: of each group, [layers, kv_heads, ...]."""
        return [array[:, number] for group in self.groups for array in (group.keys, group.values)]


class ExpertBuffers:
    """Buffers for up to `pairs` pairs of a row and an expert (`kernels.experts`); lines are sorted by expert."""

    def __init__(self, experts: Experts, hidden: int, rows: int, lines: Callable[[int, int], Float32]) -> None:
        """`lines(count, size)` are `count` lines of zeros."""
        pairs, inner = rows * experts.chosen, padded(experts.size, PANEL)
        self.logits = lines(rows, experts.count)
        self.x, self.y = lines(pairs, hidden), lines(pairs, hidden)
        self.gate_up, self.inner = lines(pairs, 2 * inner), lines(pairs, inner)
        self.mixed, self.gates = lines(rows, hidden), lines(rows, 1)
        self.picks, self.places = np.zeros(pairs, np.int64), np.zeros(pairs, np.int64)
        self.shares, self.ones = np.zeros(pairs, np.float32), np.ones(pairs, np.float32)
        self.starts, self.next = np.zeros(experts.count + 1, np.int64), np.zeros(experts.count, np.int64)


class Buffers:
    """What passes of up to `rows` rows by up to `members` threads work in; rows have positions below `positions`.

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
        """`widest`: inputs of linear layers beside those of decoder layers, the most that one has."""
        dim = max(padded(layer.head_dim, layout.LANES) for layer in layers)
        group_size = max(layer.heads // max(layer.kv_heads, 1) for layer in layers)
        attended = max(layer.output[0].inputs for layer in layers)
        widest_mlp = max(sizes.intermediate_size, experts.shared if experts else 0)
        inner = padded(widest_mlp, PANEL)
        self.rows, self.members, self.positions = rows, members, positions
        self.x, self.normed, self.update = (self.lines(sizes.hidden_size) for _ in range(3))
        self.qkv = self.lines(max(sum(module.outputs for module in layer.qkv) for layer in layers))
        queries = max(layer.heads * padded(layer.head_dim, layout.LANES) for layer in layers)
        self.queries = on_huge_pages(4 * rows * queries).view(np.float32).reshape(rows, queries)
        self._mixed: dict[int, Float32] = {}
        self.gate_up, self.inner = self.lines(2 * inner), self.lines(inner)
        self.experts = ExpertBuffers(experts, sizes.hidden_size, rows, _lines) if experts else None
        widest = max(widest, experts.size if experts else 0, sizes.hidden_size, attended, widest_mlp)
        attending = layout.scratch_bytes(group_size, dim)
        rules = [layer.rule for layer in layers if layer.rule]
        self.folded = _lines(MOST_STEPS, max(rule.folded for rule in rules)) if rules else None
        folding = 4 * STATE_LANES * MOST_PASSING * max((rule.key_dim for rule in rules), default=0)
        adapting = 4 * (MOST_RANK + padded(max(2 * inner, self.qkv.shape[1]), PANEL))
        self.scratch_size = padded(max(linear.scratch_bytes(widest), attending, folding, adapting), 4096)
        self.scratch = on_huge_pages(self.scratch_size * members)
        self.blocks = blocks_for(positions)  # that a row sees at most: a table has more, where a tree hangs at its end
        self.partial = on_huge_pages(layout.most_split(members) * self.blocks * group_size * layout.result_bytes(dim))

    def check(self, rows: Rows) -> None:
        """Refuse, before any kernel runs, a pass that would write behind a buffer.

        Raises:
            ValueError: it has too many rows, or a row is at, or sees, a position past the last one.
        """
        if len(rows) > self.rows:
            raise ValueError(f"a pass of {len(rows)} rows; there is room for {self.rows}")
        positions, lengths = rows.positions.tolist(), rows.lengths.tolist()  # few: numpy takes longer for its minima
        if positions and not 0 <= min(positions) <= max(positions) < self.positions:
            raise ValueError(f"a row at position {max(positions)}; expected 0 to {self.positions - 1}")
        if lengths and not 1 <= min(lengths) <= max(lengths) <= self.positions:
            raise ValueError(f"a row sees {max(lengths)} positions; expected 1 to {self.positions}")

    @property
    def own(self) -> dict[str, object]:
        """The fields of a record that name a member's scratch."""
        return {"scratch": self.scratch, "scratch_size": self.scratch_size}

    def mixed(self, size: int) -> Float32:
        """Results of attention: lines of `size` values, which nothing longer was ever written into."""
        if size not in self._mixed:
            self._mixed[size] = self.lines(size)
        return self._mixed[size]

    def lines(self, size: int) -> Float32:
        """A line of at least `size` values for each row."""
        return _lines(self.rows, size)


def _lines(count: int, size: int) -> Float32:
    size = padded(size, PANEL)
    return on_huge_pages(4 * count * size).view(np.float32).reshape(count, size)
