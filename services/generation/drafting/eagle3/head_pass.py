"""The passes of an EAGLE-3 head: its weights for the target's kernels, its rotation, its cache, its programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.drafting.draft_tree.candidates import vocabulary_of
from services.generation.drafting.eagle3.checkpoint import EMBEDDING, FEATURE_NORM, Head, HeadConfig, layer_spec
from services.generation.drafting.heads import rotation_of_head
from services.generation.drafting.stepping.entry_pass import AHEAD, MOST_ROWS, Embed, EntryPass, EntrySizes
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BLOCK
from services.generation.target.config.rope import inverse_root, query_scales, rotations
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.kernels import compilation
from services.generation.target.kernels.attention.cache_dtypes import FORMS
from services.generation.target.program.buffers import Buffers, Cache
from services.generation.target.program.layer import Layer, load_layer
from services.generation.target.program.matrices import Matrix, matrix_of, vector
from services.generation.target.program.operations import Operations
from services.generation.target.program.products import EmbeddingTable

CACHED = "float32"  # type of keys and values


@dataclass(frozen=True, slots=True, eq=False)
class HeadParts:
    """The data of a head's passes; `embedding`: the head's own, if it has one. `arithmetic`: of its linear layers,
    float32 or int8.
    """

    config: HeadConfig
    arithmetic: str
    all_streams_norm: Float32 | None
    stream_norms: Sequence[Float32]
    fc: Matrix
    embedding: Matrix | None
    feature_norm: Float32
    layers: Sequence[Layer]
    norm: Float32
    lm_head: Matrix
    cache: Cache

    @classmethod
    def of(cls, head: Head, arithmetic: str, cache_blocks: int, positions: int) -> HeadParts:
        """Parts with an empty cache; for int8, matrices are rounded to q4_1. Raises WeightsInvalid for NaN or infinite
        weights.
        """
        config = head.config
        stored = {name: StoredTensor.of_values(name, values) for name, values in head.tensors.items()}
        if arithmetic == "int8":
            stored |= {name: tensor.rounded() for name, tensor in stored.items() if name != EMBEDDING}
        read = stored.__getitem__
        storages = {tensor.storage for name, tensor in stored.items() if len(tensor.shape) == 2 and name != EMBEDDING}
        linear = sorted(compilation.linear_module(storage, arithmetic) for storage in storages)
        compilation.compile_ahead(["rows", f"cache_{CACHED}", *linear])
        rotation = rotation_of_head(config)
        turns = [rotations(rotation.inverse_frequencies, rotation.factor, positions)] * config.layers
        scales, layers = query_scales(inverse_root(config.head_dim), None, positions), range(config.layers)
        return cls(
            config=config,
            arithmetic=arithmetic,
            all_streams_norm=vector(read, "input_norm.weight") if config.norm_before_fc else None,
            stream_norms=[
                vector(read, f"fc_norm.{i}.weight") for i in range(len(config.feature_layers)) if config.fc_norm
            ],
            fc=matrix_of(read("fc.weight")),
            embedding=matrix_of(read(EMBEDDING)) if config.own_embeddings else None,
            feature_norm=vector(read, FEATURE_NORM),
            layers=[load_layer(layer_spec(config, number), number, (), read) for number in layers],
            norm=vector(read, "norm.weight"),
            lm_head=matrix_of(read("lm_head.weight")),
            cache=Cache.empty(
                [layer_spec(config, number) for number in layers],
                cache_blocks,
                turns,
                [scales] * config.layers,
                FORMS[CACHED],
            ),
        )


class HeadPrograms:
    """Three programs: `stores` computes keys and values of entries from the target's streams, `reads` also their
    logits, `steps` entries from earlier states. They use `buffers`. Their inputs are `embedded` and `streams` [rows,
    streams * target hidden]; for `steps`, `buffers.x` instead of `streams`. Their output is `logits` [wanted, padded
    draft vocabulary].
    """

    def __init__(self, parts: HeadParts, rows: int, members: int, positions: int) -> None:
        config = parts.config
        features = len(config.feature_layers) * config.target_hidden_size
        widest, layers = max(features, 2 * config.hidden_size), [layer.spec for layer in parts.layers]
        self.buffers = Buffers(config, rows, members, positions, widest=widest, layers=layers)
        self.streams, self.embedded = self.buffers.lines(features), self.buffers.lines(config.hidden_size)
        self.carried = self.buffers.x
        self.states = self.buffers.normed if config.norm_output else self.buffers.x
        self._read = self.buffers.lines(2 * config.hidden_size)
        self.logits = self.buffers.lines(config.draft_vocab_size)
        self._parts = parts
        self.stores = self._program(fuse=True, finish=False)
        self.reads = self._program(fuse=True, finish=True)
        self.steps = self._program(fuse=False, finish=True)

    def _program(self, *, fuse: bool, finish: bool) -> Int64:
        parts, buffers = self._parts, self.buffers
        operations = Operations(parts.config, buffers, parts.cache, arithmetic=parts.arithmetic)
        if fuse:
            self._fuse(operations)
        self._enter(operations)
        last = len(parts.layers) - 1
        for number, layer in enumerate(parts.layers):
            operations.project(layer, number, operations.norm_input(layer.attention_norm) if number else self._read)
            if finish or number < last:
                operations.attend(layer, number)
                operations.mlp(layer)
        if finish:
            operations.norm(buffers.x, buffers.normed, parts.norm, wanted=True)
            operations.linear(parts.lm_head, buffers.normed, self.logits, count="wanted")
        return np.stack(operations.records)

    def _fuse(self, operations: Operations) -> None:
        """Emit x = the fused feature of the streams."""
        parts, wide = self._parts, self._parts.config.target_hidden_size
        if parts.all_streams_norm is not None:
            operations.norm(self.streams, self.streams, parts.all_streams_norm)
        for number, norm in enumerate(parts.stream_norms):
            stream = self.streams[:, number * wide :]
            operations.norm(stream, stream, norm)
        operations.linear(parts.fc, self.streams, self.buffers.x)

    def _enter(self, operations: Operations) -> None:
        """Emit the first layer's input, normed embedding and normed feature. x may become the normed feature."""
        parts, x, hidden = self._parts, self.buffers.x, self._parts.config.hidden_size
        norm = parts.layers[0].attention_norm
        assert norm is not None
        operations.norm(self.embedded, self._read, norm)
        feature = self._read[:, hidden:]
        if parts.config.norm_before_residual:
            operations.norm(x, x, parts.feature_norm)
            operations.copy(x, feature, hidden)
        else:
            operations.norm(x, feature, parts.feature_norm)


class HeadPass(EntryPass):
    """Computes entries of an EAGLE-3 head."""

    def __init__(
        self, head: Head, embed: Embed, cache_blocks: int, context_length: int, *, threads: int = 1,
        arithmetic: str = "float32",
    ) -> None:  # fmt: skip
        """`embed` reads the target's token embeddings, [rows] ids to [rows, hidden]; unused if the head has embeddings.
        `arithmetic`: of linear layers; for int8 their weights are rounded to 4 bits.

        Raises:
            WeightsInvalid: a weight is NaN or infinite.
        """
        config = head.config
        parts = HeadParts.of(head, arithmetic, cache_blocks, context_length + AHEAD)
        own = parts.embedding
        positions = min(cache_blocks * BLOCK, context_length + AHEAD)  # a row sees only the cache
        super().__init__(
            HeadPrograms(parts, MOST_ROWS, threads, positions),
            EntrySizes(config.hidden_size, config.draft_vocab_size, config.norm_output),
            vocabulary_of(head.target_ids, config.vocab_size),
            embed if own is None else EmbeddingTable(own, config.hidden_size).rows,
            cache_blocks=cache_blocks,
            threads=threads,
        )
