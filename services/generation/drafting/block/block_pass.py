"""The passes of a block head: context into its cache, blocks to states and logits, contributions of previous tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from services.generation.drafting.block.block_checkpoint import (
    AFTER,
    ATTENTION_CONVOLUTION,
    BASE_KERNEL,
    BEFORE,
    CONFIDENCE,
    CONFIDENCE_BIAS,
    CONTEXT_NORM,
    EMBEDDING,
    FC,
    KERNEL_PROJECTION,
    MARKOV_IN,
    MARKOV_OUT,
    MLP_CONVOLUTION,
    NORM,
    OUTPUT,
    STATE_PROJECTION,
    BlockConfig,
    BlockHead,
    block_layer,
)
from services.generation.drafting.draft_tree.candidates import insert, vocabulary_of
from services.generation.drafting.heads import rotation_of_head
from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BLOCK, BlockPool
from services.generation.target.config.rope import inverse_root, query_scales, rotations
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.kernels import compilation
from services.generation.target.kernels.attention.cache_dtypes import FORMS
from services.generation.target.kernels.records import bind
from services.generation.target.kernels.storages import PANEL, padded
from services.generation.target.program.buffers import Buffers, Cache, ReusedMemory
from services.generation.target.program.layer import Layer, load_layer
from services.generation.target.program.matrices import Matrix, Read, matrix_of, vector
from services.generation.target.program.operations import NOWHERE, Operations
from services.generation.target.program.products import EmbeddingTable, Product
from services.generation.target.program.team import Passes
from services.generation.target.rows import Rows
from services.generation.target.target import Target

CACHED = "float32"  # type of keys and values
_APART = frozenset((EMBEDDING, MARKOV_IN, CONFIDENCE, CONFIDENCE_BIAS, BEFORE, AFTER, STATE_PROJECTION))
"""Tensors that no linear layer or norm reads."""
_MOST_ROWS = 256  # rows of a pass; more rows take several passes


@dataclass(frozen=True, slots=True, eq=False)
class Selector:
    """score(p, h, c) = the sum over the rank of before[p] * (projection h) * after[c], of tokens p and c."""

    before: Float32  # [vocabulary, rank]
    after: Float32  # [vocabulary, rank]
    projection: Float32  # [rank, hidden]
    top: int

    @classmethod
    def of(cls, head: BlockHead) -> Selector:
        before, after, projection = (head.tensors[name] for name in (BEFORE, AFTER, STATE_PROJECTION))
        return cls(before, after, projection, head.config.selector_top)

    def scored(self, logits: Float32, states: Float32, tokens: Int64) -> Float32:
        """Logits [n, vocabulary] of the `top` likeliest tokens of each row, with their scores after `tokens` [n];
        minus infinity for all others. `states` [n, hidden].
        """
        return _scored(logits, self.before[tokens] * (states @ self.projection.T), self.after, self.top)


@relaxed
def _scored(logits: Float32, contexts: Float32, after: Float32, top: int) -> Float32:
    found = np.full(logits.shape, -np.inf, np.float32)
    best, places = np.empty(top, np.float64), np.empty(top, np.int64)
    for r in range(len(logits)):
        best[:] = -np.inf
        for v in range(logits.shape[1]):
            if logits[r, v] > best[top - 1]:
                insert(best, places, np.float64(logits[r, v]), v)
        for i in range(top):
            if best[i] > -np.inf:
                score = np.float32(0.0)
                for j in range(contexts.shape[1]):
                    score += contexts[r, j] * after[places[i], j]
                found[r, places[i]] = logits[r, places[i]] + score
    return found


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionWeights:
    """The weights of the two convolutions round a part."""

    base: Float32  # [2, taps, hidden], before and after it
    projection: Matrix  # of the part's normed input to all deltas: [2, taps, groups]
    group: int  # channels that share a delta
    block: int

    @classmethod
    def of(cls, config: BlockConfig, prefix: str, read: Read) -> ConvolutionWeights:
        base, projection = vector(read, f"{prefix}{BASE_KERNEL}"), matrix_of(read(f"{prefix}{KERNEL_PROJECTION}"))
        return cls(base, projection, config.tap_group, config.block_size)


@dataclass(frozen=True, slots=True, eq=False)
class Convolutions:
    """`operations.Around` of attention or an MLP: its normed input is convolved, and so is its output."""

    kernels: ConvolutionWeights
    deltas: Float32  # lines [rows, 2 * taps * groups], which must outlive the program

    def before(self, operations: Operations, x: Float32) -> None:
        operations.linear(self.kernels.projection, x, self.deltas)
        self._convolve(operations, x, 0)

    def after(self, operations: Operations, update: Float32) -> None:
        self._convolve(operations, update, 1)

    def _convolve(self, operations: Operations, x: Float32, side: int) -> None:
        kernels = self.kernels
        _, taps, hidden = kernels.base.shape
        first = side * taps * (hidden // kernels.group)
        operations.convolve_block(
            x, kernels.base[side], self.deltas, first=first, group=kernels.group, block=kernels.block
        )


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """Drafting rows of blocks: normed `states` [rows, hidden] and logits [rows, draft vocabulary]."""

    states: Float32
    logits: Float32


class BlockPrograms(Protocol):
    """Passes of at most 256 rows, on the CPU (`CpuPrograms`) or on the target's device (`device_programs`)."""

    def store(self, rows: Rows, streams: Float32) -> None:
        """Compute keys and values of context from `streams` [rows, feature layers * target hidden]."""
        ...

    def draft(self, rows: Rows, embedded: Float32) -> BlockOutput:
        """Compute whole blocks from embeddings [rows, hidden]; no logits if the target's output matrix gives them."""
        ...

    def previous(self, vectors: Float32) -> Float32:
        """Contributions to logits [n, draft vocabulary] of previous tokens' vectors [n, rank] of the Markov head."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeights:
    """The data of the passes. `context_layers` compute only keys and values."""

    config: BlockConfig
    arithmetic: str
    fc: Matrix
    context_norm: Float32
    layers: Sequence[Layer]
    context_layers: Sequence[Layer]
    convolutions: Sequence[tuple[ConvolutionWeights, ConvolutionWeights]]  # of each layer's attention and MLP, or none
    norm: Float32
    output: Matrix | None  # None: the target's
    markov: Matrix | None
    cache: Cache

    @classmethod
    def of(cls, head: BlockHead, arithmetic: str, cache_blocks: int, positions: int) -> BlockWeights:
        """Raises WeightsInvalid for NaN or infinite weights."""
        config = head.config
        stored = {name: StoredTensor.of_values(name, head.tensors[name]) for name in head.tensors.keys() - _APART}
        if arithmetic == "int8":
            stored = {name: _rounded(tensor) for name, tensor in stored.items()}
        read = stored.__getitem__
        storages = {tensor.storage for tensor in stored.values() if len(tensor.shape) == 2}
        linear = sorted(compilation.linear_module(storage, arithmetic) for storage in storages)
        compilation.compile_ahead(["rows", f"cache_{CACHED}", *linear])
        rotation, specs = rotation_of_head(config), [block_layer(config, n) for n in range(config.layers)]
        turns = rotations(rotation.inverse_frequencies, rotation.factor, positions)
        scales = query_scales(inverse_root(config.head_dim), None, positions)
        layers = [load_layer(spec, number, (), read) for number, spec in enumerate(specs)]
        keys_only = [replace(spec, heads=0, qkv=spec.qkv[1:]) for spec in specs]
        return cls(
            config=config,
            arithmetic=arithmetic,
            fc=matrix_of(read(FC)),
            context_norm=vector(read, CONTEXT_NORM),
            layers=layers,
            context_layers=[
                replace(layer, spec=spec, qkv=load_layer(spec, number, (), read).qkv)
                for number, (layer, spec) in enumerate(zip(layers, keys_only, strict=True))
            ],
            convolutions=[
                (
                    ConvolutionWeights.of(config, f"{spec.prefix}{ATTENTION_CONVOLUTION}", read),
                    ConvolutionWeights.of(config, f"{spec.prefix}{MLP_CONVOLUTION}", read),
                )
                for spec in specs
                if config.taps
            ],
            norm=vector(read, NORM),
            output=matrix_of(read(OUTPUT)) if config.own_output else None,
            markov=matrix_of(read(MARKOV_OUT)) if config.markov_rank else None,
            cache=Cache.empty(specs, cache_blocks, [turns] * config.layers, [scales] * config.layers, FORMS[CACHED]),
        )


def _rounded(tensor: StoredTensor) -> StoredTensor:
    """A matrix in 4 bits; in 8 bits if it computes the factors of a convolution, which is small."""
    return tensor.rounded("q8_0") if tensor.name.endswith(KERNEL_PROJECTION) else tensor.rounded()


class CpuPrograms:
    """Two programs: `_stores` computes keys and values of context from `_streams` [rows, feature layers * target
    hidden]; `_drafts` computes states, in `buffers.normed`, and logits from embeddings in `buffers.x`.
    """

    def __init__(self, parts: BlockWeights, members: int, positions: int) -> None:
        config = parts.config
        features = len(config.feature_layers) * config.target_hidden_size
        specs = [layer.spec for layer in parts.layers]
        self._buffers = Buffers(config, _MOST_ROWS, members, positions, widest=features, layers=specs)
        self._streams, self._parts = self._buffers.lines(features), parts
        self._deltas = self._buffers.lines(2 * config.taps * (config.hidden_size // config.tap_group))
        self._passes, self._logits = Passes(members), ReusedMemory()
        if parts.markov is not None:
            self._markov = Product(parts.markov, config.draft_vocab_size, members, parts.arithmetic)
        self._stores, self._drafts = self._storing(), self._drafting()

    def store(self, rows: Rows, streams: Float32) -> None:
        """See `BlockPrograms`."""
        self._buffers.check(rows)
        self._streams[: len(rows), : streams.shape[1]] = streams
        self._passes.run(self._stores, rows)

    def draft(self, rows: Rows, embedded: Float32) -> BlockOutput:
        """See `BlockPrograms`."""
        config, buffers, wanted = self._parts.config, self._buffers, len(rows.wanted)
        buffers.check(rows)
        buffers.x[: len(rows), : config.hidden_size] = embedded
        logits = np.zeros((0, 0), np.float32)
        if config.own_output:
            logits = self._logits.take(wanted, padded(config.draft_vocab_size, PANEL))
            bind(self._drafts[-1], "linear", "y", logits)
        self._passes.run(self._drafts, rows)
        states = buffers.normed[:wanted, : config.hidden_size].copy()
        return BlockOutput(states, logits[:, : config.draft_vocab_size])

    def previous(self, vectors: Float32) -> Float32:
        """See `BlockPrograms`."""
        return self._markov.rows(vectors)

    def _operations(self) -> Operations:
        return Operations(self._parts.config, self._buffers, self._parts.cache, arithmetic=self._parts.arithmetic)

    def _storing(self) -> Int64:
        parts, buffers, operations = self._parts, self._buffers, self._operations()
        operations.linear(parts.fc, self._streams, buffers.x)
        operations.norm(buffers.x, buffers.normed, parts.context_norm)
        for number, layer in enumerate(parts.context_layers):
            operations.project(layer, number, buffers.normed)
        return np.stack(operations.records)

    def _drafting(self) -> Int64:
        parts, buffers, operations = self._parts, self._buffers, self._operations()
        for number, layer in enumerate(parts.layers):
            attention, mlp = (
                (Convolutions(kernels, self._deltas) for kernels in parts.convolutions[number])
                if parts.convolutions
                else (None, None)
            )
            x = operations.norm_input(layer.attention_norm)
            if attention:
                attention.before(operations, x)
            operations.project(layer, number, x)
            operations.attend(layer, number, attention)
            operations.mlp(layer, mlp)
        operations.norm(buffers.x, buffers.normed, parts.norm, wanted=True)
        if parts.output is not None:
            operations.linear(parts.output, buffers.normed, NOWHERE, count="wanted")
        return np.stack(operations.records)


class BlockPass:
    """Computes blocks with its own cache (`blocks`): keys and values of committed tokens, followed by the block's,
    which the next context overwrites. Used by one thread.
    """

    def __init__(
        self, head: BlockHead, target: Target, cache_blocks: int, context_length: int, *, arithmetic: str = "float32",
        programs: BlockPrograms | None = None,
    ) -> None:  # fmt: skip
        """The target's embeddings and output matrix are used if the head has none. `arithmetic`: of linear layers; for
        int8 their weights are rounded to 4 bits. `programs`: those of a device, in place of the CPU's.

        Raises:
            WeightsInvalid: a weight is NaN or infinite.
        """
        config, tensors = head.config, head.tensors
        self.config, self.blocks = config, BlockPool(cache_blocks)
        self.vocabulary = vocabulary_of(head.target_ids, config.vocab_size)
        self._target = target
        self._embed = target.embed
        if config.own_embeddings:
            table = matrix_of(StoredTensor.of_values(EMBEDDING, tensors[EMBEDDING]))
            self._embed = EmbeddingTable(table, config.hidden_size).rows
        self._selector = Selector.of(head) if config.selector_rank else None
        self._before = tensors.get(MARKOV_IN, np.zeros((0, 0), np.float32))
        self._confidence = tensors.get(CONFIDENCE, np.zeros((1, 0), np.float32))[0]
        self._confidence_bias = float(tensors[CONFIDENCE_BIAS][0]) if config.confidence else 0.0
        if programs is None:
            ahead = context_length + config.block_size
            parts = BlockWeights.of(head, arithmetic, cache_blocks, ahead)
            programs = CpuPrograms(parts, target.threads, min(cache_blocks * BLOCK, ahead))
        self._programs = programs

    def store(self, rows: Rows, features: Float32) -> None:
        """Compute keys and values of committed tokens from their `features` [rows, feature layers * target hidden]."""
        for first in range(0, len(rows), _MOST_ROWS):
            some = rows.part(first, min(first + _MOST_ROWS, len(rows)))
            self._programs.store(some, features[first : first + len(some)])

    def draft(self, rows: Rows) -> BlockOutput:
        """Compute whole blocks, the rows of `RowsBuilder.add_block`; returns states and logits of wanted rows."""
        whole = _MOST_ROWS // self.config.block_size * self.config.block_size
        starts = range(0, len(rows), whole)
        parts = [rows.part(first, min(first + whole, len(rows))) for first in starts]
        pieces = [self._programs.draft(part, self._embed(part.tokens)) for part in parts]
        states = np.concatenate([piece.states for piece in pieces])
        if not self.config.own_output:
            return BlockOutput(states, self._target.unembed(states))
        return BlockOutput(states, np.concatenate([piece.logits for piece in pieces]))

    def add_previous(self, logits: Float32, states: Float32, tokens: Sequence[int]) -> Float32:
        """Logits [n, draft vocabulary] with the contributions of the previous tokens: a new array. `states` [n, hidden]
        are those of the logits.
        """
        if self._selector is not None:
            return self._selector.scored(logits, states, np.array(tokens, np.int64))
        if not self.config.markov_rank:
            return logits.copy()
        bias = self._programs.previous(self._before[tokens])
        bias += logits
        return np.ascontiguousarray(bias)

    def confidence(self, states: Float32, tokens: Sequence[int]) -> Float32 | None:
        """[n] estimated acceptance after `tokens`, by states [n, hidden]; None without a confidence head."""
        if not self.config.confidence:
            return None
        wide = self.config.hidden_size
        with np.errstate(over="ignore", invalid="ignore"):  # of degenerate weights
            found = states @ self._confidence[:wide] + np.float32(self._confidence_bias)
            if self.config.confidence_reads_token:
                found = found + self._before[tokens] @ self._confidence[wide:]
        return np.asarray(1.0 / (1.0 + np.exp(-np.nan_to_num(found).clip(-30.0, 30.0))), np.float32)
