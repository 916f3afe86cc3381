"""The canonical pass on the CPU: one compiled call, whose rows' bits depend only on their tokens and adapter."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from services.generation.target.adapters import Adapter, read_adapter
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BLOCK, BlockPool
from services.generation.target.config.config import TargetConfig, bounded, cache_blocks, read_config, usual_cache
from services.generation.target.config.layer_specs import EMBEDDING, layer_specs
from services.generation.target.config.rope import query_scales, rotations
from services.generation.target.errors import TargetError
from services.generation.target.family import NORM
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.identity import base_cid, one_version, tokenizer_cid
from services.generation.target.kernels import compilation
from services.generation.target.kernels.attention.cache_dtypes import FORMS
from services.generation.target.kernels.attention.form import Form
from services.generation.target.kernels.machine import cpus
from services.generation.target.kernels.storages import PANEL, padded
from services.generation.target.program.buffers import Buffers, Cache, ReusedMemory, return_freed_memory, unmap
from services.generation.target.program.kernel_probe import KernelReport, abridged, blocks_to_probe, probe_kernels
from services.generation.target.program.layer import load_layer
from services.generation.target.program.matrices import Pack, matrix_of, vector
from services.generation.target.program.packed_files import PackedFolder
from services.generation.target.program.packing import PackedWeights
from services.generation.target.program.products import EmbeddingTable, Product
from services.generation.target.program.program import LayerInputsTable, ModelWeights, Program
from services.generation.target.program.team import Passes, team
from services.generation.target.progress import Progress
from services.generation.target.rows import Rows
from services.generation.target.states import StateBook
from services.generation.target.target import PassOutput, Shared
from services.generation.target.weights import (
    Weights,
    check_int8,
    checked_weights,
    output_name,
    packed_size,
    reader,
    stored_bytes,
    usual_arithmetic,
)

_ARITHMETIC = "kolm-arithmetic/1"
MOST_ROWS = 256  # of a pass; more rows are computed in several passes, earlier rows first
_STATE_BYTES = 1 << 30  # for states, if that is enough for a few sequences
_FEWEST_STATES, _MOST_STATES = 25, 193  # for passes of 8 and of 64 sequences


class CpuTarget:
    """`Target` on the CPU, by the programs of `docs/numerics.md`; weights stay in their published storage.

    A pass is a program of a few hundred operations (`target.program`) that a team of threads executes in one call.
    """

    device = "cpu"

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
        arithmetic: str = "float32",
        packed: PackedFolder | None = None,
        check_files: Callable[[], None] = lambda: None,
    ) -> None:
        """Load the weights and allocate the cache.

        Args:
            threads: of a pass, by default one for each CPU; the number changes no bit.
            cache_dtype: of keys and values, float32, bfloat16 or int8; part of the profile.
            arithmetic: of linear layers with quantised weights, float32 or int8; part of the profile.
            packed: where packed weights are kept.
            check_files: raises an error if the weights' files have changed since they were hashed, called before packed
                weights are kept.

        Raises:
            WeightsInvalid: a weight is NaN or infinite.
            ArithmeticUnsupported: `arithmetic` is int8 and the weights are not quantised.
        """
        self.config = config
        self.blocks = BlockPool(cache_blocks)
        self.base_cid, self.tokenizer_cid = base_cid, tokenizer_cid
        self.adapters = tuple(adapter.identity for adapter in adapters)
        self.threads = threads or cpus()
        if arithmetic == "int8":
            check_int8(config, weights)
        compilation.compile_ahead(_kernel_modules(weights, cache_dtype, arithmetic))
        kept = _states_kept(config)
        cache = _cache(config, cache_blocks, FORMS[cache_dtype], kept)
        self._states = StateBook(kept, cache_blocks, config.rule.taps) if config.rule else None
        with (packed or PackedFolder(0)).packing(base_cid, packed_size(weights, config)) as pack:
            noted = _noted(pack, Progress("packing weights", stored_bytes(weights)))
            self._parts = _load(config, weights, noted, adapters, arithmetic, cache)
            check_files()
        kernels = compilation.kernels(f"cache_{cache_dtype}")
        move = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10)
        self._moves = {is_own: move(kernels["move" if is_own else "move_lines"]) for is_own in (True, False)}
        self._passes = Passes(self.threads)
        layers = [layer.spec for layer in self._parts.layers]
        self._buffers = Buffers(
            config, MOST_ROWS, self.threads, config.context_length, experts=config.experts, layers=layers
        )
        self._programs: dict[tuple[tuple[int, ...], bool], Program] = {}
        self._logits = ReusedMemory()
        self._embedding = EmbeddingTable(self._parts.embedding, config.hidden_size)
        self._unembedding = Product(self._parts.head, config.vocab_size, self.threads, arithmetic)
        self.numerics: Mapping[str, Any] = {"arithmetic": profile_name(arithmetic), "cache": cache_dtype}

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        """See `Target`."""
        layers = tuple(feature_layers)
        ends = self._states.cuts(rows) if self._states else []
        if len(rows) <= MOST_ROWS and not ends:
            return self._forward(rows, layers)
        cuts = sorted({*range(0, len(rows), MOST_ROWS), *ends, len(rows)})
        parts = [self._forward(rows.part(first, end), layers) for first, end in pairwise(cuts)]
        logits, features = ([getattr(part, name) for part in parts] for name in ("logits", "features"))
        return PassOutput(np.concatenate(logits), np.concatenate(features))

    def _forward(self, rows: Rows, feature_layers: tuple[int, ...]) -> PassOutput:
        config, count, wanted = self.config, len(rows), len(rows.wanted)
        self._buffers.check(rows)
        program = self._program(feature_layers, rows.adapter_slots is not None)
        vocabulary = self._parts.head.weights.columns
        logits = self._logits.take(wanted, padded(vocabulary, PANEL))
        features = np.empty((count, len(feature_layers) * config.hidden_size), np.float32)
        program.bind_outputs(logits, features)
        *before, steps = self._states.plan(rows) if self._states else [None]
        for each in before:
            assert each is not None
            assert program.folding is not None
            self._passes.fold(program.folding, each)
        self._passes.run(program.records, rows, steps)
        return PassOutput(logits[:, :vocabulary], features)

    def _program(self, feature_layers: tuple[int, ...], adapted: bool) -> Program:
        key = feature_layers, adapted
        if key not in self._programs:
            self._programs[key] = Program(self._parts, self._buffers, feature_layers, adapted)
        return self._programs[key]

    def probe_kernels(self) -> KernelReport:
        """See `Target`. Raises CacheFull if no block is free."""
        table: list[int] = []
        self.blocks.extend(table, BLOCK * max(1, min(blocks_to_probe(self._parts), self.blocks.free)))
        try:
            return probe_kernels(self._parts, self._buffers, team(), table)
        finally:
            self.blocks.release(table)
            if self._states:
                self._states.forget()  # the probe has overwritten lines of the cache

    def abridged(self) -> CpuTarget:
        """See `Target`. Both share buffers and states: never compute with one between passes of the other's
        sequences.
        """
        found = copy(self)
        found._parts, found._programs = abridged(self._parts, self.threads), {}
        return found

    def embed(self, tokens: Int64) -> Float32:
        return self._embedding.rows(tokens)

    def unembed(self, states: Float32) -> Float32:
        return self._unembedding.rows(states)

    def shared(self) -> Shared:
        return Shared(self._parts.cache, self._parts.norm)

    def move(self, sources: list[int], targets: list[int]) -> None:
        if self._states:
            self._states.written(targets)
        places = [np.array(slots, np.int64) for slots in (sources, targets)]
        for group in self._parts.cache.groups:
            self._moves[group.form is self._parts.cache.form](
                group.keys.ctypes.data, group.values.ctypes.data, *group.keys.shape[:3], group.key, group.value,
                *(place.ctypes.data for place in places), len(sources),
            )  # fmt: skip

    def release_memory(self) -> None:
        """See `Target`."""
        self._logits.release()
        for run in self.blocks.unused():
            self._parts.cache.discard(run)
        self.blocks.note_returned()
        if self._parts.embedding is not self._parts.head:  # of which passes read single rows, and map pages around them
            unmap(self._parts.embedding.weights.panels)
        return_freed_memory()

    def block_content(self, block: int) -> bytes:
        return b"".join(part.tobytes() for part in self._parts.cache.block(block))

    def fill_block(self, block: int, content: bytes | memoryview) -> None:
        """See `Target`. States are folded from blocks again."""
        if self._states:
            self._states.written(np.arange(block * BLOCK, (block + 1) * BLOCK))
        at = 0
        for part in self._parts.cache.block(block):
            part[...] = np.frombuffer(content, part.dtype, part.size, at).reshape(part.shape)
            at += part.nbytes


def _states_kept(config: TargetConfig) -> int:
    """The number of states of all layers to allocate; their memory is touched only when they are used."""
    if config.rule is None:
        return 0
    size = 4 * config.rule.state * sum(config.rule.layers)
    return min(max(_STATE_BYTES // max(size, 1), _FEWEST_STATES), _MOST_STATES)


def profile_name(arithmetic: str) -> str:
    """The name of an arithmetic, float32 or int8, in the numerics profile."""
    return _ARITHMETIC if arithmetic == "float32" else f"{_ARITHMETIC}+{arithmetic}"


def _noted(pack: Pack, progress: Progress) -> Pack:
    """A `Pack` that reports its progress in published bytes."""

    def noted(tensors: Sequence[StoredTensor], order: Int64 | None) -> PackedWeights:
        found = pack(tensors, order)
        progress.add(sum(tensor.data.nbytes for tensor in tensors))
        return found

    return noted


def _cache(config: TargetConfig, blocks: int, form: Form, states: int) -> Cache:
    context, specs = config.context_length, layer_specs(config)
    turns = {each: rotations(each.within(context), each.factor, context) for each in set(config.rotations)}
    by_scale = {each: query_scales(*each, context) for each in {(spec.scale, spec.temperature) for spec in specs}}
    scales = [by_scale[spec.scale, spec.temperature] for spec in specs]
    return Cache.empty(specs, blocks, [turns[each] for each in config.rotations], scales, form, states)


def _load(
    config: TargetConfig, weights: Weights, pack: Pack, adapters: Sequence[Adapter], arithmetic: str, cache: Cache
) -> ModelWeights:
    """Read, check and pack the weights."""
    read, output = reader(weights, config), output_name(weights, config)
    embedding = matrix_of(read(EMBEDDING), pack=pack)
    return ModelWeights(
        config=config,
        layers=[
            load_layer(spec, number, adapters, read, config.norm_offset, pack)
            for number, spec in enumerate(layer_specs(config))
        ],
        embedding=embedding,
        norm=vector(read, NORM, config.norm_offset) * np.float32(config.logit_scale),
        head=embedding if output == EMBEDDING else matrix_of(read(output), pack=pack),
        cache=cache,
        arithmetic=arithmetic,
        inputs=LayerInputsTable.load(read, pack) if config.layer_inputs else None,
    )


def _kernel_modules(weights: Weights, cache_dtype: str, arithmetic: str) -> list[str]:
    storages = {weights.storage(name) for name in weights.names() if len(weights.shape(name)) == 2}
    return compilation.module_names(sorted(storages), cache_dtype, arithmetic)


def compile_beside(directory: Path, cache_dtype: str | None, arithmetic: str | None) -> None:
    """Start to compile the kernels for which `load_target` would wait; a model that it refuses needs none."""
    with suppress(TargetError):
        config = read_config(directory)
        weights = checked_weights(directory, config)
        arithmetic = arithmetic or usual_arithmetic(config, weights)
        modules = _kernel_modules(weights, cache_dtype or usual_cache(config, arithmetic), arithmetic)
        threading.Thread(target=compilation.try_to_compile, args=(modules,), name="compiling", daemon=True).start()


def load_target(
    directory: Path,
    *,
    context_length: int | None = None,
    cache_tokens: int | None = None,
    cache_bytes: int | None = None,
    adapters: Mapping[str, Path] | None = None,
    cache_dtype: str | None = None,
    arithmetic: str | None = None,
    threads: int | None = None,
    packed: PackedFolder | None = None,
) -> CpuTarget:
    """Load a transformers model directory (config.json, safetensors, tokenizer.json).

    Args:
        directory: the model.
        context_length: most tokens of a sequence; by default the model's own, at most 8,192.
        cache_tokens: tokens in the key/value cache over all sequences; they may be fewer than a context.
        cache_bytes: alternatively its size, of which an eighth is for features (`config.feature_bytes`); by default
            1 GiB, at least one whole context and at most 64. Memory is touched only when it is used.
        adapters: LoRA adapters in peft's layout, directories by name.
        cache_dtype: of keys and values, `float32`, `bfloat16` or `int8`; by default `usual_cache`.
        arithmetic: of linear layers with quantised weights, `float32` or `int8`; by default `usual_arithmetic`.
        threads: of a pass; by default one for each CPU.
        packed: where packed weights are kept; by default nowhere.

    Raises:
        TargetError: see `services.generation.target.errors`; the message names the file and the field.
    """
    with one_version(directory) as check:
        config = bounded(read_config(directory), context_length)
        weights = checked_weights(directory, config)
        arithmetic = arithmetic or usual_arithmetic(config, weights)
        cached = cache_dtype or usual_cache(config, arithmetic)
        blocks = cache_blocks(config, cached, tokens=cache_tokens, size=cache_bytes)
        cids = base_cid(directory), tokenizer_cid(directory)
        loaded = _read_adapters(adapters or {}, config, directory, cids[0])
        return CpuTarget(
            config, weights, blocks, *cids, loaded, threads=threads, cache_dtype=cached, arithmetic=arithmetic,
            packed=packed, check_files=check,
        )  # fmt: skip


def _read_adapters(
    adapters: Mapping[str, Path], base: TargetConfig, base_directory: Path, base_cid: str
) -> list[Adapter]:
    read = []
    for name, directory in adapters.items():
        try:
            read.append(read_adapter(name, directory, base, base_directory, base_cid))
        except TargetError as error:
            raise type(error)(f"--adapter: {name}: {error}") from error
    return read
