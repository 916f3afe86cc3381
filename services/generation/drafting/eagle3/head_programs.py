"""A head's passes as programs of the target's kernels (`target.canonical.program`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.head_parts import HeadParts
from services.generation.target.canonical.program.buffers import Buffers
from services.generation.target.canonical.program.matrix_records import give
from services.generation.target.canonical.program.operations import NOWHERE, Operations

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


class HeadPrograms:
    """Three programs: `stores` keys and values of entries from the target's streams, `reads` goes on to their logits,
    `steps` computes entries from earlier states. They work in `buffers`. Their inputs are the lines `embedded` and
    `streams` [rows, streams * target hidden]; for `steps`, `buffers.x` in place of `streams`.
    """

    def __init__(self, parts: HeadParts, rows: int, members: int, blocks: int) -> None:
        config = parts.config
        features = len(config.feature_layers) * config.target_hidden_size
        widest, layers = max(features, 2 * config.hidden_size), [layer.spec for layer in parts.layers]
        self.buffers = Buffers(config, rows, members, blocks, widest=widest, layers=layers)
        self.streams, self.embedded = self.buffers.lines(features), self.buffers.lines(config.hidden_size)
        self._read = self.buffers.lines(2 * config.hidden_size)
        self._parts = parts
        self.stores = self._program(fuse=True, finish=False)
        self.reads = self._program(fuse=True, finish=True)
        self.steps = self._program(fuse=False, finish=True)

    def give(self, logits: Float32) -> None:
        """Say where logits [wanted, padded draft vocabulary] go."""
        for records in (self.reads, self.steps):
            give(records[-1], "linear", "y", logits)

    def _program(self, *, fuse: bool, finish: bool) -> Int64:
        parts, buffers = self._parts, self.buffers
        operations = Operations(parts.config, buffers, parts.cache, arithmetic=parts.arithmetic)
        if fuse:
            self._fuse(operations)
        self._enter(operations)
        last = len(parts.layers) - 1
        for number, layer in enumerate(parts.layers):
            if number:
                operations.norm(buffers.x, buffers.normed, layer.attention_norm)
            operations.store(layer, number, buffers.normed if number else self._read)
            if finish or number < last:
                operations.attend(layer, number)
                operations.mlp(layer)
        if finish:
            operations.norm(buffers.x, buffers.normed, parts.norm, wanted=True)
            operations.linear(parts.lm_head, buffers.normed, NOWHERE, count="wanted")
        return np.stack(operations.records)

    def _fuse(self, operations: Operations) -> None:
        """x = the feature that the streams make."""
        parts, wide = self._parts, self._parts.config.target_hidden_size
        if parts.all_streams_norm is not None:
            operations.norm(self.streams, self.streams, parts.all_streams_norm)
        for number, norm in enumerate(parts.stream_norms):
            stream = self.streams[:, number * wide :]
            operations.norm(stream, stream, norm)
        operations.linear(parts.fc, self.streams, self.buffers.x)

    def _enter(self, operations: Operations) -> None:
        """The first layer's input: normed embedding beside normed feature. x may be that feature from here on."""
        parts, x, hidden = self._parts, self.buffers.x, self._parts.config.hidden_size
        operations.norm(self.embedded, self._read, parts.layers[0].attention_norm)
        feature = self._read[:, hidden:]
        if parts.config.norm_before_residual:
            operations.norm(x, x, parts.feature_norm)
            operations.copy(x, feature, hidden)
        else:
            operations.norm(x, feature, parts.feature_norm)
