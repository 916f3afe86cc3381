"""Passes of an MTP block: its weights as the target's kernels read them, its cache, its programs.

Entry p is fc · [norm(embedding of token p + 1) ; norm(hidden state of position p)] through one decoder layer and a
norm; its logits predict token p + 2. The hidden state is the base's after its final norm, or, of a draft, the output of
the entry before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.generation.drafting.draft_tree.candidates import vocabulary_of
from services.generation.drafting.mtp.block_weights import (
    EMBEDDING_NORM,
    HIDDEN_NORM,
    JOINT,
    LAST_NORM,
    OWN_EMBEDDING,
    MtpBlock,
    block_layer,
    layer_alike,
)
from services.generation.drafting.mtp.rounding import in_arithmetic, output_in_arithmetic
from services.generation.drafting.stepping.entry_pass import AHEAD, MOST_ROWS, EntryPass, EntrySizes
from services.generation.target.arrays import Float32, Int64
from services.generation.target.blocks import BLOCK
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.rope import query_scales, rotations
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.kernels import compilation
from services.generation.target.kernels.attention.cache_dtypes import FORMS
from services.generation.target.kernels.storages import packed_as
from services.generation.target.program.buffers import Buffers, Cache
from services.generation.target.program.layer import Layer, load_layer
from services.generation.target.program.matrices import Matrix, matrix_of, vector
from services.generation.target.program.operations import NOWHERE, Operations
from services.generation.target.program.products import EmbeddingTable
from services.generation.target.target import Target

_CACHED = "float32"  # in which keys and values are kept


@dataclass(frozen=True, slots=True, eq=False)
class _MtpWeights:
    """All that the programs point to. `output`: None if the target's gives logits."""

    base: TargetConfig
    arithmetic: str
    base_norm: Float32
    embedding_norm: Float32
    hidden_norm: Float32
    joint: Matrix
    layer: Layer
    norm: Float32
    output: Matrix | None
    draft_vocabulary: int
    cache: Cache

    @classmethod
    def of(cls, block: MtpBlock, arithmetic: str, cache_blocks: int, positions: int) -> _MtpWeights:
        """Weights with an empty cache. Raises WeightsInvalid for weights that are NaN or infinite."""
        base, spec = block.base, block_layer(block.base)
        stored = {
            name: tensor if name == OWN_EMBEDDING else in_arithmetic(tensor, arithmetic)
            for name, tensor in block.tensors.items()
        }
        output = None if block.output is None else output_in_arithmetic(block.output, arithmetic)
        _compile([*stored.values(), *([output] if output else [])], arithmetic)
        read, rotation = stored.__getitem__, base.rotations[layer_alike(base)]
        turns = rotations(rotation.within(base.context_length), rotation.factor, positions)
        return cls(
            base=base,
            arithmetic=arithmetic,
            base_norm=block.base_norm,
            embedding_norm=vector(read, EMBEDDING_NORM, base.norm_offset),
            hidden_norm=vector(read, HIDDEN_NORM, base.norm_offset),
            joint=matrix_of(read(JOINT)),
            layer=load_layer(spec, 0, (), read, base.norm_offset),
            norm=vector(read, LAST_NORM, base.norm_offset),
            output=None if output is None else matrix_of(output),
            draft_vocabulary=len(block.target_ids),
            cache=Cache.empty(
                [spec],
                cache_blocks,
                [turns],
                [query_scales(spec.scale, spec.temperature, positions)],
                FORMS[_CACHED],
            ),
        )


def _compile(tensors: Sequence[StoredTensor], arithmetic: str) -> None:
    storages = {packed_as(tensor.storage).name for tensor in tensors if len(tensor.shape) == 2}
    embedded = {packed_as(tensor.storage).name for tensor in tensors if tensor.name == OWN_EMBEDDING}
    linear = sorted(compilation.linear_module(storage, arithmetic) for storage in storages)
    compilation.compile_ahead(["rows", f"cache_{_CACHED}", *linear, *(f"embed_{storage}" for storage in embedded)])


class MtpPrograms:
    """`stepping.entry_pass.EntryPrograms` of a block. States are outputs of the block's last norm."""

    def __init__(self, parts: _MtpWeights, rows: int, members: int, positions: int) -> None:
        base = parts.base
        hidden = base.hidden_size
        self._parts = parts
        self.buffers = Buffers(
            base, rows, members, positions, widest=2 * hidden, experts=base.experts, layers=[parts.layer.spec]
        )
        self.streams, self.carried, self.embedded = (self.buffers.lines(hidden) for _ in range(3))
        self._read = self.buffers.lines(2 * hidden)
        self.logits = NOWHERE if parts.output is None else self.buffers.lines(parts.draft_vocabulary)
        self._kept = list[Int64]()  # what records point to
        self.states = self.buffers.normed
        self.stores = self._program(self.streams, finish=False)
        self.reads = self._program(self.streams, finish=True)
        self.steps = self._program(self.carried, finish=True)

    def _program(self, hidden_states: Float32, *, finish: bool) -> Int64:
        parts, buffers = self._parts, self.buffers
        operations = Operations(parts.base, buffers, parts.cache, arithmetic=parts.arithmetic)
        if hidden_states is self.streams:
            operations.norm(hidden_states, hidden_states, parts.base_norm)
        operations.norm(self.embedded, self._read, parts.embedding_norm)
        operations.norm(hidden_states, self._read[:, parts.base.hidden_size :], parts.hidden_norm)
        operations.linear(parts.joint, self._read, buffers.x)
        operations.project(parts.layer, 0, operations.norm_input(parts.layer.attention_norm))
        if finish:
            operations.attend(parts.layer, 0)
            operations.mlp(parts.layer)
            operations.norm(buffers.x, buffers.normed, parts.norm, wanted=True)
            if parts.output is not None:
                operations.linear(parts.output, buffers.normed, self.logits, count="wanted")
        self._kept += operations.keeps_alive
        return np.stack(operations.records)


class MtpPass(EntryPass):
    """Computes entries of an MTP block."""

    def __init__(self, block: MtpBlock, target: Target, cache_blocks: int, *, arithmetic: str = "float32") -> None:
        """The target's embeddings, and its output matrix if all tokens are drafted, are read if the block has none of
        its own. `arithmetic`: of linear layers; for int8 matrices of plain numbers are rounded to 8 bits.

        Raises:
            WeightsInvalid: a weight is NaN or infinite.
        """
        base, own = block.base, block.tensors.get(OWN_EMBEDDING)
        ahead = target.config.context_length + AHEAD
        parts = _MtpWeights.of(block, arithmetic, cache_blocks, ahead)
        super().__init__(
            MtpPrograms(parts, MOST_ROWS, target.threads, min(cache_blocks * BLOCK, ahead)),
            EntrySizes(base.hidden_size, len(block.target_ids), states_of_wanted=True),
            vocabulary_of(block.target_ids, base.vocab_size),
            target.embed if own is None else EmbeddingTable(matrix_of(own), base.hidden_size).rows,
            cache_blocks=cache_blocks,
            threads=target.threads,
            unembed=target.unembed if parts.output is None else None,
        )
