"""The probe of single kernels: each kind of linear layer at every number of rows, attention over long histories.

`target.probe` covers few numbers of rows and short histories. Here rows are computed one by one by one thread, then
together, by teams of all sizes, and compared bit by bit. Nothing here takes longer for a model of more layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.kernels import compilation
from services.generation.target.kernels.attention.layout import LANES
from services.generation.target.kernels.attention.rounded import SCALES, query_lines
from services.generation.target.kernels.records import PASS, bind, record_of
from services.generation.target.kernels.row_operations import PART
from services.generation.target.kernels.storages import PANEL, padded
from services.generation.target.program.buffers import Buffers
from services.generation.target.program.matrices import Matrix, linear_record
from services.generation.target.program.packing import PackedWeights
from services.generation.target.program.program import ModelWeights
from services.generation.target.program.team import Team
from services.generation.target.progress import Progress

_MOST_CACHE = 64 << 20  # bytes of a layer's keys in the probed history
_ROWS = 40  # of attention, together
_SAMPLED = (*range(1, 34), 47, 64, 100, 128, 255, 256)
"""Numbers of rows that smaller teams compute (the largest computes all): members compute panels alike in all teams."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The number of compared outputs, and descriptions of all that differed."""

    compared: int
    failures: tuple[str, ...]


def probe_kernels(
    parts: ModelWeights, buffers: Buffers, team: Team, table: list[int], *, seed: int = 0
) -> KernelReport:
    """Probe the kernels on a model's own weights. `table`: blocks of the cache that may be overwritten."""
    rng = np.random.default_rng(seed)
    compared, failures = 0, []
    for each in _comparisons(parts, buffers, team, table, rng):
        compared += 1
        if each.together.tobytes() != each.alone.tobytes():
            different = int((each.together != each.alone).sum())
            failures.append(f"{each.case}: {different} of {each.together.size} values differ")
    return KernelReport(compared, tuple(failures))


@dataclass(frozen=True, slots=True, eq=False)
class _Comparison:
    """Outputs of rows computed together, and one by one."""

    case: str
    together: Float32
    alone: Float32


def _comparisons(
    parts: ModelWeights, buffers: Buffers, team: Team, table: list[int], rng: np.random.Generator
) -> Iterator[_Comparison]:
    matrices = [parts.head, *(matrix for layer in parts.layers for matrix in layer.matrices)]
    kinds = {(matrix.weights.storage.name, matrix.weights.inputs): matrix for matrix in matrices}
    progress = Progress("probing kernels", len(kinds) + 1, "kinds")
    for _, matrix in sorted(kinds.items()):
        yield from _linear(matrix, parts.arithmetic, buffers, team, rng)
        progress.add(1)
    yield from _attention(parts, buffers, team, table, rng)


def _linear(
    matrix: Matrix, arithmetic: str, buffers: Buffers, team: Team, rng: np.random.Generator
) -> Iterator[_Comparison]:
    """Outputs of the layer's first panels."""
    some, most, members = _first_panels(matrix, buffers.members), buffers.rows, buffers.members
    x = rng.standard_normal((most, some.weights.padded_inputs), dtype=np.float32)
    x[:, some.weights.inputs :] = 0.0

    def prepared(part: Matrix, member: int = 0) -> tuple[Float32, Int64, _Pass]:
        y = np.zeros((most, part.panels * PANEL), np.float32)
        scratch = {**buffers.scratch_fields, "scratch": buffers.scratch[member * buffers.scratch_size :]}
        record = linear_record(part, scratch, arithmetic, x=x, y=y)
        return y, record, _Pass(team, record)

    alone, record, run = prepared(some)
    for row in range(most):
        bind(record, "linear", "x", x[row:])
        bind(record, "linear", "y", alone[row:])
        run(1, 1)
    kind = f"{some.weights.storage.name} with {some.weights.inputs} inputs"
    single = [prepared(_first_panels(matrix, 1), member) for member in range(members)]

    def by_one_thread(rows: int, member: int) -> _Comparison:
        y, _, run = single[member]
        y[:] = 0.0
        run(rows, 1)
        return _Comparison(f"{kind}, {rows} rows, 1 thread", y[:rows], alone[:rows, : y.shape[1]])

    with ThreadPoolExecutor(members) as pool:  # each number of rows by one of the threads
        for first in range(1, most + 1, members):
            yield from pool.map(by_one_thread, range(first, min(first + members, most + 1)), range(members))
    y, _, run = prepared(some)
    for threads in range(2, members + 1):
        for rows in range(1, most + 1) if threads == members else _SAMPLED:
            y[:] = 0.0
            run(rows, threads)
            yield _Comparison(f"{kind}, {rows} rows, {threads} threads", y[:rows], alone[:rows])


def abridged(parts: ModelWeights, members: int) -> ModelWeights:
    """The first layer of each kind, with its cache, and the head's first panels.

    Layers of a kind differ in the values of their weights. A layer that reads another's keys and values comes with it.
    """
    first: dict[Any, int] = {}
    for number in range(len(parts.layers)):
        first.setdefault(_kind(parts, number), number)
    sources = [parts.layers[number].spec.source for number in first.values()]
    chosen = sorted({*first.values(), *(number for number in sources if number is not None)})
    return replace(
        parts,
        layers=[parts.layers[number] for number in chosen],
        cache=parts.cache.of_layers(chosen),
        head=_first_panels(parts.head, members),
    )


def _kind(parts: ModelWeights, number: int) -> Any:
    """Everything that determines a layer's operations, but for the values of weights."""
    layer, cache = parts.layers[number], parts.cache
    matrices = [*layer.matrices, *(layer.experts.gate_up + layer.experts.down if layer.experts else ())]
    shapes = [(each.weights.storage.name, each.weights.columns, each.weights.inputs, each.first) for each in matrices]
    updates = [
        (each.parts[:, PART.index("inputs") :].tobytes(), each.adapter_parts.tobytes()) for each in layer.updates
    ]
    spec = replace(layer.spec, prefix="", source=None), layer.spec.source is None, layer.scalar != 1.0
    return spec, *map(id, cache.rotations[number]), id(cache.scales[number]), *shapes, *updates


def _first_panels(matrix: Matrix, members: int) -> Matrix:
    """The first panels of a matrix: one for each of `members` threads, and a second one for one of them."""
    weights, panels = matrix.weights, min(matrix.panels, members + 1)
    columns = min(weights.columns, panels * PANEL)
    return Matrix(PackedWeights(weights.storage, columns, weights.inputs, weights.panels[:panels]), matrix.bias)


class _Pass:
    """A pass of one operation or a few. `fields` are words of the pass."""

    def __init__(self, team: Team, *records: Int64, **fields: NDArray[np.generic] | int) -> None:
        self._team, self._keeps_alive = team, (records, fields)
        self._program = np.stack(records) if len(records) > 1 else records[0].reshape(1, -1)
        self._words = np.zeros(len(PASS), np.int64)
        self._set("program", self._program.ctypes.data)
        self._set("operations", len(records))
        for name, value in fields.items():
            self._set(name, value if isinstance(value, int) else value.ctypes.data)

    def _set(self, name: str, value: int) -> None:
        self._words[PASS.index(name)] = value

    def __call__(self, rows: int, threads: int) -> None:
        self._set("rows", rows)
        self._team.run(self._words, threads, wait=True)


def _random(like: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Random keys or values of blocks, in the form of `like`."""
    numbers = rng.standard_normal(like.shape, dtype=np.float32)
    if like.dtype == np.uint8:
        found = rng.integers(0, 256, like.shape, np.uint8)
        scales = found.reshape(*like.shape[:2], -1)[..., -SCALES:]
        scales[:] = np.abs(numbers).reshape(*like.shape[:2], -1)[..., : SCALES // 4].copy().view(np.uint8)
        return found
    return numbers if like.dtype == np.float32 else (numbers.view(np.uint32) >> 16).astype(np.uint16)


def _attention(
    parts: ModelWeights, buffers: Buffers, team: Team, table: list[int], rng: np.random.Generator
) -> Iterator[_Comparison]:
    """The comparisons of `_layer_attention` for one layer of each size of heads."""
    sizes = {
        (layer.spec.heads, layer.spec.kv_heads, layer.spec.head_dim): number
        for number, layer in enumerate(parts.layers) if not layer.spec.taps and not layer.spec.rule
    }  # fmt: skip
    for number in sizes.values():
        yield from _layer_attention(parts, number, buffers, team, table, rng)


def _layer_attention(
    parts: ModelWeights, number: int, buffers: Buffers, team: Team, table: list[int], rng: np.random.Generator
) -> Iterator[_Comparison]:
    """Outputs on a cache of random keys and values."""
    spec, keys, values = parts.layers[number].spec, parts.cache.keys[number], parts.cache.values[number]
    for array in (keys, values):
        array[table] = _random(array[table], rng)
    length = min(parts.config.context_length, len(table) * BLOCK)
    positions = np.unique(rng.integers(0, length, _ROWS).astype(np.int32))
    positions[-1] = length - 1
    rows, wide = len(positions), padded(spec.head_dim, LANES)
    shape = rows, spec.heads, spec.head_dim
    queries = np.zeros((*shape[:2], wide), np.float32)
    if parts.cache.form.name == "int8":
        queries[:] = query_lines(rng.integers(-127, 128, shape), np.float32(0.01), wide)
    else:
        queries[:, :, : spec.head_dim] = rng.standard_normal(shape, dtype=np.float32)
    mixed = np.zeros((rows, padded(spec.heads * spec.head_dim, PANEL)), np.float32)
    fields = {
        **buffers.scratch_fields, "heads": spec.heads, "kv_heads": spec.kv_heads, "dim": spec.head_dim, "padded": wide,
        "queries": queries, "keys": keys, "values": values, "mixed": mixed, "partial": buffers.partial,
        "blocks": buffers.blocks, "window": max(parts.config.windows), "cap": spec.cap,
    }  # fmt: skip
    kernels = compilation.kernels(f"cache_{parts.cache.form.name}")

    def records(fields: Mapping[str, Any]) -> list[Int64]:
        return [record_of("attend", kernels[name], fields) for name in ("attend", "combine")]

    contiguous = positions + np.int32(1)
    seen: dict[str, Any] = {
        "tables": np.array([table], np.int32), "table_stride": len(table), "sequences": np.zeros(rows, np.int32),
        "positions": positions, "lengths": contiguous, "contiguous": contiguous, "branches": np.zeros(1, np.int32),
        "branch_starts": np.zeros(rows + 1, np.int32),
    }  # fmt: skip
    alone = np.empty_like(mixed)
    for row in range(rows):
        own = {"positions": positions[row:], "lengths": contiguous[row:], "contiguous": contiguous[row:]}
        _Pass(team, *records(fields | {"queries": queries[row:]}), **(seen | own))(1, 1)
        alone[row] = mixed[0]
    for threads in range(1, buffers.members + 1):
        for count in {rows, 1, 2, 5}:
            mixed[:] = 0.0
            _Pass(team, *records(fields), **seen)(count, threads)
            case = f"attention over up to {len(table) * BLOCK} keys, {count} rows, {threads} threads"
            yield _Comparison(case, mixed[:count].copy(), alone[:count])


def blocks_to_probe(parts: ModelWeights) -> int:
    """Blocks of the cache with which attention is probed: a whole context, or as much as _MOST_CACHE allows."""
    block = max(int(keys[0].nbytes) for keys in parts.cache.keys)
    return max(1, min(blocks_for(parts.config.context_length), _MOST_CACHE // max(block, 1)))
