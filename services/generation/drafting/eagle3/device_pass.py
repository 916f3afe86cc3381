"""The passes of an EAGLE-3 head on its target's device: the kernels of the target, and the bits of `HeadPass`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from services.generation.drafting.draft_tree.candidates import vocabulary_of
from services.generation.drafting.eagle3.checkpoint import Head
from services.generation.drafting.eagle3.head_pass import CACHED, HeadParts
from services.generation.drafting.head_drafter import ARITHMETIC
from services.generation.drafting.stepping.entry_pass import AHEAD, HeadOutput, KeptEmbeddings
from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK, BlockPool
from services.generation.target.gpu.device import Buffer
from services.generation.target.gpu.gpu_target import GpuTarget
from services.generation.target.gpu.layers import MOST_ROWS, LayerPasses
from services.generation.target.program.products import EmbeddingTable
from services.generation.target.rows import Rows


class DeviceHeadPass:
    """`Entries` of an EAGLE-3 head, whose weights and cache are in the device's memory. States and logits are copied to
    the CPU, where trees grow.
    """

    def __init__(self, head: Head, target: GpuTarget, cache_blocks: int) -> None:
        """Raises DeviceUnavailable if the device's memory is full, WeightsInvalid if a weight is NaN or infinite."""
        config, kernels = head.config, target.kernels
        positions = min(cache_blocks * BLOCK, target.config.context_length + AHEAD)
        parts = HeadParts.of(head, ARITHMETIC, 1, positions)
        hidden, streams = config.hidden_size, len(config.feature_layers) * config.target_hidden_size
        passes = LayerPasses(
            kernels, config, CACHED, cache_blocks, is_int8=ARITHMETIC == "int8", widest=max(streams, 2 * hidden)
        )
        self.blocks = BlockPool(cache_blocks)
        self.vocabulary = vocabulary_of(head.target_ids, config.vocab_size)
        self._config, self._kernels, self._passes = config, kernels, passes
        own = parts.embedding
        self._embeddings = KeptEmbeddings(target.embed if own is None else EmbeddingTable(own, hidden).rows, hidden)
        self._streams, self._embedded, self._read = map(passes.lines, (streams, hidden, 2 * hidden))
        tables = passes.tables(*parts.cache.rotations[0], parts.cache.scales[0])
        self._layers = [passes.load(layer, tables) for layer in parts.layers]
        norm = parts.layers[0].attention_norm
        assert norm is not None
        self._embedding_norm, self._feature_norm, self._norm = map(
            kernels.upload, (norm, parts.feature_norm, parts.norm)
        )
        whole = parts.all_streams_norm
        self._all_streams_norm = None if whole is None else kernels.upload(whole)
        self._stream_norms = [kernels.upload(each) for each in parts.stream_norms]
        self._fc, self._lm_head = kernels.matrix(parts.fc), kernels.matrix(parts.lm_head)
        self._logits = passes.lines(self._lm_head.columns)

    def read(self, rows: Rows, features: Float32) -> HeadOutput:
        """See `EntryPass`."""
        return self._in_pieces(rows, features, fuse=True)

    def step(self, rows: Rows, states: Float32) -> HeadOutput:
        """See `EntryPass`."""
        return self._in_pieces(rows, states, fuse=False)

    def _in_pieces(self, rows: Rows, inputs: Float32, *, fuse: bool) -> HeadOutput:
        cuts = [*range(0, len(rows), MOST_ROWS), len(rows)]
        parts = [self._compute(rows.part(*cut), inputs[slice(*cut)], fuse=fuse) for cut in pairwise(cuts)]
        return HeadOutput(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("states", "logits")))

    def _compute(self, rows: Rows, inputs: Float32, *, fuse: bool) -> HeadOutput:
        """Compute entries from streams, which are fused, or from earlier states.

        Raises:
            ValueError: a row's position is past a context and a draft.
            DeviceLost: the device failed.
        """
        config, passes, count, wanted = self._config, self._passes, len(rows), len(rows.wanted)
        described = passes.described(rows)
        embedded = np.empty((count, config.hidden_size), np.float32)
        self._embeddings.read(rows.tokens, embedded)
        passes.write(self._embedded, embedded)
        passes.write(self._streams if fuse else passes.x, inputs)
        if fuse:
            self._fuse(count)
        self._enter(count)
        for number, layer in enumerate(self._layers):
            x = passes.normed_stream(layer.attention_norm, count) if number else self._read
            passes.project(layer, x, described, count)
            if wanted or layer is not self._layers[-1]:
                passes.finish(layer, described, count)
        return self._finished(rows, described)

    def _fuse(self, count: int) -> None:
        """x = the fused feature of the streams."""
        passes, streams, wide = self._passes, self._streams, self._config.target_hidden_size
        if self._all_streams_norm is not None:
            size = wide * len(self._config.feature_layers)
            passes.norm(streams, self._all_streams_norm, streams, count, size=size)
        for number, norm in enumerate(self._stream_norms):
            passes.norm(streams, norm, streams, count, size=wide, at=number * wide)
        passes.linear([self._fc], streams, passes.x, count)

    def _enter(self, count: int) -> None:
        """The first layer's input: normed embedding and normed feature, which may become the stream."""
        passes, hidden = self._passes, self._config.hidden_size
        feature = passes.x if self._config.norm_before_residual else passes.normed
        passes.norm(self._embedded, self._embedding_norm, self._read, count)
        passes.norm(passes.x, self._feature_norm, feature, count)
        self._kernels.copy(feature, self._read, count, hidden, hidden)

    def _finished(self, rows: Rows, described: Buffer) -> HeadOutput:
        """States and logits of wanted rows."""
        config, passes, wanted = self._config, self._passes, len(rows.wanted)
        passes.norm(passes.x, self._norm, passes.normed, wanted, described=described)
        passes.linear([self._lm_head], passes.normed, self._logits, wanted)
        lines, count = (passes.normed, wanted) if config.norm_output else (passes.x, len(rows))
        states = passes.read(lines, count, config.hidden_size)
        logits = passes.read(self._logits, wanted, config.draft_vocab_size)
        return HeadOutput(states if config.norm_output else states[rows.wanted], np.ascontiguousarray(logits))
