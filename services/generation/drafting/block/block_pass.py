"""The passes of a block head: context into its cache, blocks to states and logits, contributions of previous tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from services.generation.drafting.draft_tree.candidates import Vocabulary, insert
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

_CACHED = "float32"  # type of keys and values
_APART = frozenset((EMBEDDING, MARKOV_IN, MARKOV_OUT, CONFIDENCE, CONFIDENCE_BIAS, BEFORE, AFTER, STATE_PROJECTION))
"""Tensors that no operation of a pass reads."""
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
class Kernels:
    """The weights of the two convolutions round a part."""

    base: Float32  # [2, taps, hidden], before and after it
    projection: Matrix  # of the part's normed input to all deltas: [2, taps, groups]
    group: int  # channels that share a delta
    block: int

    @classmethod
    def of(cls, config: BlockConfig, prefix: str, read: Read) -> Kernels:
        base, projection = vector(read, f"{prefix}{BASE_KERNEL}"), matrix_of(read(f"{prefix}{KERNEL_PROJECTION}"))
        return cls(base, projection, config.tap_group, config.block_size)


@dataclass(frozen=True, slots=True, eq=False)
class Convolutions:
    """`operations.Around` of attention or an MLP: its normed input is convolved, and so is its output."""

    kernels: Kernels
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


@dataclass(frozen=True, slots=True, eq=False)
class _BlockWeights:
    """The data of the passes. `context_layers` compute only keys and values."""

    config: BlockConfig
    arithmetic: str
    fc: Matrix
    context_norm: Float32
    layers: Sequence[Layer]
    context_layers: Sequence[Layer]
    convolutions: Sequence[tuple[Kernels, Kernels]]  # round attention and MLP of each layer; empty if there are none
    norm: Float32
    output: Matrix | None  # None: the target's
    cache: Cache

    @classmethod
    def of(cls, head: BlockHead, arithmetic: str, cache_blocks: int, positions: int) -> _BlockWeights:
        config = head.config
        stored = {name: StoredTensor.of_values(name, head.tensors[name]) for name in head.tensors.keys() - _APART}
        if arithmetic == "int8":
            stored = {name: _rounded(tensor) for name, tensor in stored.items()}
        read = stored.__getitem__
        storages = {tensor.storage for tensor in stored.values() if len(tensor.shape) == 2}
        linear = sorted(compilation.linear_module(storage, arithmetic) for storage in storages)
        compilation.compile_ahead(["rows", f"cache_{_CACHED}", *linear])
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
                    Kernels.of(config, f"{spec.prefix}{ATTENTION_CONVOLUTION}", read),
                    Kernels.of(config, f"{spec.prefix}{MLP_CONVOLUTION}", read),
                )
                for spec in specs
                if config.taps
            ],
            norm=vector(read, NORM),
            output=matrix_of(read(OUTPUT)) if config.own_output else None,
            cache=Cache.empty(specs, cache_blocks, [turns] * config.layers, [scales] * config.layers, FORMS[_CACHED]),
        )


def _rounded(tensor: StoredTensor) -> StoredTensor:
    """A matrix in 4 bits; in 8 bits if it computes the factors of a convolution, which is small."""
    return tensor.rounded("q8_0") if tensor.name.endswith(KERNEL_PROJECTION) else tensor.rounded()


class _Programs:
    """Two programs: `stores` computes keys and values of context from `streams` [rows, feature layers * target hidden];
    `drafts` computes states, in `buffers.normed`, and logits from embeddings in `buffers.x`.
    """

    def __init__(self, parts: _BlockWeights, members: int, positions: int) -> None:
        config = parts.config
        features = len(config.feature_layers) * config.target_hidden_size
        specs = [layer.spec for layer in parts.layers]
        self.buffers = Buffers(config, _MOST_ROWS, members, positions, widest=features, layers=specs)
        self.streams, self._parts = self.buffers.lines(features), parts
        self._deltas = self.buffers.lines(2 * config.taps * (config.hidden_size // config.tap_group))
        self.stores, self.drafts = self._stores(), self._drafts()

    def _operations(self) -> Operations:
        return Operations(self._parts.config, self.buffers, self._parts.cache, arithmetic=self._parts.arithmetic)

    def _stores(self) -> Int64:
        parts, buffers, operations = self._parts, self.buffers, self._operations()
        operations.linear(parts.fc, self.streams, buffers.x)
        operations.norm(buffers.x, buffers.normed, parts.context_norm)
        for number, layer in enumerate(parts.context_layers):
            operations.project(layer, number, buffers.normed)
        return np.stack(operations.records)

    def _drafts(self) -> Int64:
        parts, buffers, operations = self._parts, self.buffers, self._operations()
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

    def bind(self, logits: Float32) -> None:
        """Set the destination of logits [wanted, padded draft vocabulary], if the head has an output matrix."""
        bind(self.drafts[-1], "linear", "y", logits)


class BlockPass:
    """Computes blocks with its own cache (`blocks`): keys and values of committed tokens, followed by the block's,
    which the next context overwrites. Used by one thread.
    """

    def __init__(
        self, head: BlockHead, target: Target, cache_blocks: int, context_length: int, *, arithmetic: str = "float32"
    ) -> None:
        """The target's embeddings and output matrix are used if the head has none. `arithmetic`: of linear layers; for
        int8 their weights are rounded to 4 bits.

        Raises:
            WeightsInvalid: a weight is NaN or infinite.
        """
        config, tensors = head.config, head.tensors
        self.config, self.blocks = config, BlockPool(cache_blocks)
        draft_ids = np.full(config.vocab_size, -1, np.int64)
        draft_ids[head.target_ids] = np.arange(len(head.target_ids))
        self.vocabulary = Vocabulary(head.target_ids, draft_ids)
        self._target, ahead = target, context_length + config.block_size
        parts = _BlockWeights.of(head, arithmetic, cache_blocks, ahead)
        self._embed = target.embed
        if config.own_embeddings:
            table = matrix_of(StoredTensor.of_values(EMBEDDING, tensors[EMBEDDING]))
            self._embed = EmbeddingTable(table, config.hidden_size).rows
        self._markov = _markov(head, target.threads, arithmetic) if config.markov_rank else None
        self._selector = Selector.of(head) if config.selector_rank else None
        self._before = tensors.get(MARKOV_IN, np.zeros((0, 0), np.float32))
        self._confidence = tensors.get(CONFIDENCE, np.zeros((1, 0), np.float32))[0]
        self._confidence_bias = float(tensors[CONFIDENCE_BIAS][0]) if config.confidence else 0.0
        self._passes, self._logits = Passes(target.threads), ReusedMemory()
        self._programs = _Programs(parts, target.threads, min(cache_blocks * BLOCK, ahead))

    def store(self, rows: Rows, features: Float32) -> None:
        """Compute keys and values of committed tokens from their `features` [rows, feature layers * target hidden]."""
        programs = self._programs
        for first in range(0, len(rows), _MOST_ROWS):
            some = rows.part(first, min(first + _MOST_ROWS, len(rows)))
            programs.buffers.check(some)
            programs.streams[: len(some), : features.shape[1]] = features[first : first + len(some)]
            self._passes.run(programs.stores, some)

    def draft(self, rows: Rows) -> BlockOutput:
        """Compute whole blocks, the rows of `RowsBuilder.add_block`; returns states and logits of wanted rows."""
        whole = _MOST_ROWS // self.config.block_size * self.config.block_size
        starts = range(0, len(rows), whole)
        pieces = [self._draft(rows.part(first, min(first + whole, len(rows)))) for first in starts]
        states = np.concatenate([states for states, _ in pieces])
        if not self.config.own_output:
            return BlockOutput(states, self._target.unembed(states))
        return BlockOutput(states, np.concatenate([logits for _, logits in pieces]))

    def _draft(self, rows: Rows) -> tuple[Float32, Float32]:
        config, programs, wanted = self.config, self._programs, len(rows.wanted)
        programs.buffers.check(rows)
        programs.buffers.x[: len(rows), : config.hidden_size] = self._embed(rows.tokens)
        logits = np.zeros((0, 0), np.float32)
        if config.own_output:
            logits = self._logits.take(wanted, padded(config.draft_vocab_size, PANEL))
            programs.bind(logits)
        self._passes.run(programs.drafts, rows)
        return programs.buffers.normed[:wanted, : config.hidden_size].copy(), logits[:, : config.draft_vocab_size]

    def add_previous(self, logits: Float32, states: Float32, tokens: Sequence[int]) -> Float32:
        """Logits [n, draft vocabulary] with the contributions of the previous tokens: a new array. `states` [n, hidden]
        are those of the logits.
        """
        if self._selector is not None:
            return self._selector.scored(logits, states, np.array(tokens, np.int64))
        if self._markov is None:
            return logits.copy()
        bias = self._markov.rows(self._before[tokens])
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


def _markov(head: BlockHead, threads: int, arithmetic: str) -> Product:
    tensor = StoredTensor.of_values(MARKOV_OUT, head.tensors[MARKOV_OUT])
    tensor = tensor.rounded() if arithmetic == "int8" else tensor
    compilation.compile_ahead([compilation.linear_module(tensor.storage, arithmetic)])
    return Product(matrix_of(tensor), head.config.draft_vocab_size, threads, arithmetic)
