"""The canonical pass on the CPU: one compiled call; a row's bits depend on its own tokens and adapter only."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.target.adapters.adapter import Adapter
from services.generation.target.blocks import BLOCK, BlockPool, blocks_for
from services.generation.target.canonical import compilation, team
from services.generation.target.canonical.attention import LANES
from services.generation.target.canonical.cached import CACHED, Cached
from services.generation.target.canonical.kernel_probe import blocks_to_probe, probe_kernels
from services.generation.target.canonical.kernel_report import KernelReport
from services.generation.target.canonical.layer import load_layer
from services.generation.target.canonical.matrices import matrix_of, vector
from services.generation.target.canonical.packing import on_huge_pages
from services.generation.target.canonical.program import Buffers, Parts, Program, embedding_record
from services.generation.target.canonical.records import PASS, WORDS
from services.generation.target.canonical.storages import PANEL, padded
from services.generation.target.config import TargetConfig
from services.generation.target.layer_spec import EMBEDDING, HEAD, NORM, layer_specs
from services.generation.target.rotations import rotations
from services.generation.target.rows import Rows
from services.generation.target.target import Float32, PassOutput
from services.generation.target.weights.weights import Weights

ARITHMETIC = "kolm-arithmetic/1"
MOST_ROWS = 256  # of a pass; more go through in several, earlier rows first
_PLACE = {name: number for number, name in enumerate(PASS)}


class CpuTarget:
    """`Target` on the CPU, by the programs of `docs/numerics.md`; weights stay in the form in which they are published.

    A pass over `rows` is a program of a few hundred operations (`canonical.program`) that torch's OpenMP threads run
    together; Python hands over addresses and gets logits.
    """

    def __init__(
        self,
        config: TargetConfig,
        weights: Weights,
        cache_blocks: int,
        base_cid: str,
        tokenizer_cid: str,
        adapters: Sequence[Adapter] = (),
        *,
        threads: int | None = None,
        cache_dtype: str = "float32",
    ) -> None:
        """`threads`: of a pass, by default as many as there are CPUs; it changes no bit. `cache_dtype`: what keys and
        values are kept in, float32 or bfloat16; it is part of the profile.

        Raises:
            WeightsInvalid: a weight is NaN or infinite.
        """
        self.config = config
        self.blocks = BlockPool(cache_blocks)
        self.base_cid, self.tokenizer_cid = base_cid, tokenizer_cid
        self.adapters = tuple(adapter.identity for adapter in adapters)
        self._threads = threads or team.cpus()
        storages = {weights.storage(name) for name in weights.names() if len(weights.shape(name)) == 2}
        compilation.compile_ahead(compilation.module_names(sorted(storages), cache_dtype))
        self._parts = _load(config, weights, cache_blocks, adapters, CACHED[cache_dtype])
        kernels = compilation.kernels(f"cache_{cache_dtype}")
        self._team = team.team()
        self._move = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10)(kernels["move"])
        blocks = blocks_for(config.context_length)
        self._buffers = Buffers(config, MOST_ROWS, self._threads, blocks)
        self._programs: dict[tuple[tuple[int, ...], bool], Program] = {}
        self._logits = _Reused()
        self._words = np.zeros(len(PASS), np.int64)
        self._embedding = _Embedding(self._parts)
        self.numerics: Mapping[str, Any] = {"arithmetic": ARITHMETIC, "cache": cache_dtype}

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        """See `Target`."""
        layers = tuple(feature_layers)
        if len(rows) <= MOST_ROWS:
            return self._forward(rows, layers)
        starts = range(0, len(rows), MOST_ROWS)
        parts = [self._forward(rows.part(at, min(at + MOST_ROWS, len(rows))), layers) for at in starts]
        logits, features = ([getattr(part, name) for part in parts] for name in ("logits", "features"))
        return PassOutput(np.concatenate(logits), np.concatenate(features))

    def _forward(self, rows: Rows, feature_layers: tuple[int, ...]) -> PassOutput:
        config, count, wanted = self.config, len(rows), len(rows.wanted)
        program = self._program(feature_layers, rows.wearing is not None)
        logits = self._logits.take(wanted, padded(config.vocab_size, PANEL))
        features = np.empty((count, len(feature_layers) * config.hidden_size), np.float32)
        program.give(logits, features)
        arrays: dict[str, NDArray[Any]] = {
            "program": program.records, "tokens": rows.tokens, "positions": rows.positions, "slots": rows.slots,
            "sequences": rows.sequences, "contiguous": rows.contiguous, "branch_starts": rows.branch_starts,
            "branches": rows.branches, "tables": rows.tables, "wanted_rows": rows.wanted,
        }  # fmt: skip
        if rows.wearing is not None:
            arrays["adapters"] = rows.wearing
        for name, array in arrays.items():
            assert array.flags.c_contiguous
            self._words[_PLACE[name]] = array.ctypes.data
        self._words[_PLACE["operations"]] = len(program.records)
        self._words[_PLACE["rows"]], self._words[_PLACE["wanted"]] = count, wanted
        self._words[_PLACE["table_stride"]] = rows.tables.shape[1]
        self._team.run(self._words, self._threads)
        return PassOutput(logits[:, : config.vocab_size], features)

    def _program(self, feature_layers: tuple[int, ...], adapted: bool) -> Program:
        key = feature_layers, adapted
        if key not in self._programs:
            self._programs[key] = Program(self._parts, self._buffers, feature_layers, adapted)
        return self._programs[key]

    def probe_kernels(self) -> KernelReport:
        """See `Target`. Raises CacheFull where nothing of the cache is free."""
        table: list[int] = []
        self.blocks.extend(table, BLOCK * min(blocks_to_probe(self._parts), self.blocks.free))
        try:
            return probe_kernels(self._parts, self._buffers, self._team, table)
        finally:
            self.blocks.release(table)

    def embed(self, tokens: NDArray[np.int64]) -> Float32:
        return self._embedding.rows(np.ascontiguousarray(tokens, np.int64))

    def move(self, sources: list[int], targets: list[int]) -> None:
        keys, values = self._parts.keys, self._parts.values
        layers, blocks, kv_heads, dim, _ = keys.shape
        places = [np.array(slots, np.int64) for slots in (sources, targets)]
        self._move(
            keys.ctypes.data, values.ctypes.data, layers, blocks, kv_heads, dim, values.shape[4],
            *(place.ctypes.data for place in places), len(sources),
        )  # fmt: skip


def _load(
    config: TargetConfig, weights: Weights, cache_blocks: int, adapters: Sequence[Adapter], cached: Cached
) -> Parts:
    """Read, check and pack all weights; make an empty cache."""
    read = weights.tensor
    dim = padded(config.head_dim, LANES)
    shape = config.layers, cache_blocks, config.kv_heads
    embedding = matrix_of(read(EMBEDDING))
    cosines, sines = rotations(config.inverse_frequencies, config.rope_scaling, config.context_length)
    return Parts(
        config=config,
        cached=cached,
        layers=[load_layer(spec, number, adapters, read) for number, spec in enumerate(layer_specs(config))],
        embedding=embedding,
        norm=vector(read, NORM),
        head=embedding if config.tied_embeddings else matrix_of(read(HEAD)),
        cosines=cosines,
        sines=sines,
        keys=_zeros((*shape, config.head_dim, BLOCK), cached),
        values=_zeros((*shape, BLOCK, dim), cached),
    )


def _zeros(shape: tuple[int, ...], cached: Cached) -> NDArray[Any]:
    """Memory that is touched only as it is used."""
    kind = np.float32 if cached.size == 4 else np.uint16
    return on_huge_pages(cached.size * int(np.prod(shape))).view(kind).reshape(shape)


class _Reused:
    """Memory for logits, taken again once nobody refers to what was handed out: fresh pages cost more than the head."""

    def __init__(self) -> None:
        self._memory = [np.empty(0, np.float32)]

    def take(self, rows: int, size: int) -> Float32:
        free = 2  # references of a list's item: the list's own and the one that asks
        number = next((n for n in range(len(self._memory)) if sys.getrefcount(self._memory[n]) <= free), None)
        if number is None:
            self._memory.append(np.empty(0, np.float32))
            number = len(self._memory) - 1
        if self._memory[number].size < rows * size:
            self._memory[number] = np.empty(rows * size, np.float32)
        return self._memory[number][: rows * size].reshape(rows, size)


class _Embedding:
    """Rows of the embedding table by a kernel of their own, beside any pass."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._size = parts, parts.config.hidden_size
        self._scratch = on_huge_pages(1 << 16)
        self._words = np.zeros(len(PASS), np.int64)

    def rows(self, tokens: NDArray[np.int64]) -> Float32:
        out = np.empty((len(tokens), padded(self._size, PANEL)), np.float32)
        own = {"scratch": self._scratch, "scratch_size": 0}
        record = embedding_record(self._parts.embedding, out, self._size, own)
        assert len(record) == WORDS
        self._words[_PLACE["rows"]], self._words[_PLACE["tokens"]] = len(tokens), tokens.ctypes.data
        compilation.call(int(record[0]), record.ctypes.data, self._words.ctypes.data, 0, 1)
        return out[:, : self._size]
