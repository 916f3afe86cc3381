"""Passes of Gemma 4's assistant over the target's cache.

A row reads the embedding of a token and a hidden state: the target's of the last computed token, after its final norm,
or, of a draft, the projection of the row before. All rows of a draft have the position of the last token, whose key the
target has not computed yet, and see the keys before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.generation.drafting.draft_tree.candidates import vocabulary_of
from services.generation.drafting.mtp.assistant import JOINT, PROJECTION, Assistant, assistant_layers
from services.generation.drafting.mtp.rounding import in_arithmetic, output_in_arithmetic
from services.generation.drafting.stepping.entry_pass import AHEAD, MOST_ROWS, EntryPass, EntrySizes
from services.generation.target.arrays import Float32, Int64
from services.generation.target.config.config import TargetConfig
from services.generation.target.config.layer_specs import EMBEDDING, HEAD
from services.generation.target.config.rope import query_scales, rotations
from services.generation.target.family import NORM
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.kernels import compilation
from services.generation.target.kernels.storages import packed_as
from services.generation.target.program.buffers import Buffers, Cache
from services.generation.target.program.layer import Layer, load_layer
from services.generation.target.program.matrices import Matrix, matrix_of, vector
from services.generation.target.program.operations import NOWHERE, Operations
from services.generation.target.target import Shared, Target


@dataclass(frozen=True, slots=True, eq=False)
class _Weights:
    """All that the programs point to."""

    own: TargetConfig
    wide: int  # the target's hidden size
    arithmetic: str
    base_norm: Float32
    embedding_scale: float
    joint: Matrix
    layers: Sequence[Layer]
    norm: Float32
    projection: Matrix
    output: Matrix
    cache: Cache  # of the target's layers that they read

    @classmethod
    def of(cls, head: Assistant, shared: Shared, arithmetic: str, positions: int) -> _Weights:
        """Raises WeightsInvalid for weights that are NaN or infinite."""
        own, output = head.own, HEAD if HEAD in head.tensors else EMBEDDING
        stored = {name: StoredTensor.of_values(name, values) for name, values in head.tensors.items()}
        stored = {
            name: (output_in_arithmetic if name == output else in_arithmetic)(tensor, arithmetic)
            for name, tensor in stored.items()
        }
        storages = {packed_as(tensor.storage).name for tensor in stored.values() if len(tensor.shape) == 2}
        linear = sorted(compilation.linear_module(storage, arithmetic) for storage in storages)
        compilation.compile_ahead(["rows", f"cache_{shared.cache.form.name}", *linear])
        read, found = stored.__getitem__, assistant_layers(own, head.base)
        turns = {
            each: rotations(each.within(own.context_length), each.factor, positions) for each in set(own.rotations)
        }
        cache = replace(
            shared.cache.of_layers([layer.source for layer in found]),
            rotations=[turns[each] for each in own.rotations],
            scales=[query_scales(layer.spec.scale, layer.spec.temperature, positions) for layer in found],
        )
        return cls(
            own=own,
            wide=head.base.hidden_size,
            arithmetic=arithmetic,
            base_norm=shared.norm,
            embedding_scale=head.base.embedding_scale,
            joint=matrix_of(read(JOINT)),
            layers=[load_layer(layer.spec, number, (), read) for number, layer in enumerate(found)],
            norm=vector(read, NORM),
            projection=matrix_of(read(PROJECTION)),
            output=matrix_of(read(output)),
            cache=cache,
        )


class AssistantPrograms:
    """`stepping.entry_pass.EntryPrograms` of an assistant, which has no keys and values to store."""

    stores = NOWHERE.view(np.int64)

    def __init__(self, parts: _Weights, rows: int, members: int, positions: int) -> None:
        layers = [layer.spec for layer in parts.layers]
        self._parts = parts
        self.buffers = Buffers(parts.own, rows, members, positions, widest=2 * parts.wide, layers=layers)
        self.streams, self.carried, self.embedded, self.states = (self.buffers.lines(parts.wide) for _ in range(4))
        self._read = self.buffers.lines(2 * parts.wide)
        self.logits = self.buffers.lines(parts.own.vocab_size)
        self.reads = self._program(self.streams)
        self.steps = self._program(self.carried)

    def _program(self, hidden_states: Float32) -> Int64:
        parts, buffers = self._parts, self.buffers
        operations = Operations(parts.own, buffers, parts.cache, arithmetic=parts.arithmetic)
        if hidden_states is self.streams:
            operations.norm(hidden_states, hidden_states, parts.base_norm)
        operations.copy(self.embedded, self._read, parts.wide)
        operations.scale(self._read, parts.embedding_scale, parts.wide)
        operations.copy(hidden_states, self._read[:, parts.wide :], parts.wide)
        operations.linear(parts.joint, self._read, buffers.x)
        for number, layer in enumerate(parts.layers):
            operations.project(layer, number, operations.norm_input(layer.attention_norm))
            operations.attend(layer, number)
            operations.mlp(layer)
            operations.inputs(layer, NOWHERE, NOWHERE)
        operations.norm(buffers.x, buffers.normed, parts.norm, wanted=True)
        operations.linear(parts.projection, buffers.normed, self.states, count="wanted")
        operations.linear(parts.output, buffers.normed, self.logits, count="wanted")
        return np.stack(operations.records)


class AssistantPass(EntryPass):
    """Computes rows of an assistant."""

    def __init__(self, head: Assistant, target: Target, *, arithmetic: str = "float32") -> None:
        """`arithmetic`: of linear layers; for int8, matrices are rounded to 8 bits and the output matrix to 4.

        Raises:
            WeightsInvalid: a weight is NaN or infinite.
        """
        positions = target.config.context_length + AHEAD
        parts = _Weights.of(head, target.shared(), arithmetic, positions)
        super().__init__(
            AssistantPrograms(parts, MOST_ROWS, target.threads, positions),
            EntrySizes(head.base.hidden_size, head.own.vocab_size, states_of_wanted=True),
            vocabulary_of(np.arange(head.own.vocab_size), head.base.vocab_size),
            target.embed,
            cache_blocks=0,
            threads=target.threads,
        )
