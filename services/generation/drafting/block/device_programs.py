"""The programs of a block head on its target's device: the kernels of the target, and the bits of `block_pass`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from services.generation.drafting.block import block_pass
from services.generation.drafting.block.block_checkpoint import BlockHead
from services.generation.drafting.block.block_pass import CACHED, BlockOutput, BlockWeights
from services.generation.drafting.head_drafter import ARITHMETIC
from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK
from services.generation.target.gpu.device import Buffer
from services.generation.target.gpu.gpu_target import LOGIT_ROWS, GpuTarget
from services.generation.target.gpu.kernels import DeviceMatrix, Kernels, Lines
from services.generation.target.gpu.layers import LayerPasses
from services.generation.target.rows import Rows


@dataclass(frozen=True, slots=True, eq=False)
class _Convolutions:
    """`layers.Around` of attention or an MLP, as `block_pass.Convolutions` has it."""

    kernels: Kernels
    passes: LayerPasses
    weights: block_pass.ConvolutionWeights
    projection: DeviceMatrix
    base: tuple[Buffer, Buffer]  # before and after the part
    deltas: Lines

    @classmethod
    def of(
        cls, kernels: Kernels, passes: LayerPasses, weights: block_pass.ConvolutionWeights, deltas: Lines
    ) -> _Convolutions:
        before, after = map(kernels.upload, weights.base)
        return cls(kernels, passes, weights, kernels.matrix(weights.projection), (before, after), deltas)

    def before(self, x: Lines, count: int) -> None:
        self.passes.linear([self.projection], x, self.deltas, count)
        self._convolve(x, count, 0)

    def after(self, update: Lines, count: int) -> None:
        self._convolve(update, count, 1)

    def _convolve(self, x: Lines, count: int, side: int) -> None:
        weights = self.weights
        _, taps, hidden = weights.base.shape
        self.kernels.convolve_block(
            x, self.base[side], self.deltas, count // weights.block, hidden, taps=taps, group=weights.group,
            block=weights.block, at=side * taps * (hidden // weights.group),
        )  # fmt: skip


class DevicePrograms:
    """`BlockPrograms` of a head whose weights and cache are in the device's memory. States and logits are copied to the
    CPU, where trees grow.
    """

    def __init__(self, head: BlockHead, target: GpuTarget, cache_blocks: int) -> None:
        """Raises DeviceUnavailable if the device's memory is full, WeightsInvalid if a weight is NaN or infinite."""
        config, kernels = head.config, target.kernels
        positions = min(cache_blocks * BLOCK, target.config.context_length + config.block_size)
        parts = BlockWeights.of(head, ARITHMETIC, 1, positions)
        streams, is_int8 = len(config.feature_layers) * config.target_hidden_size, ARITHMETIC == "int8"
        passes = LayerPasses(kernels, config, CACHED, cache_blocks, is_int8=is_int8, widest=streams)
        self._config, self._passes = config, passes
        tables = passes.tables(*parts.cache.rotations[0], parts.cache.scales[0])
        layers = [passes.load(layer, tables) for layer in parts.layers]
        self._context_layers = [
            passes.keys_only(layer, shape) for layer, shape in zip(layers, parts.context_layers, strict=True)
        ]
        deltas = passes.lines(2 * config.taps * (config.hidden_size // config.tap_group))
        for number, (attention, mlp) in enumerate(parts.convolutions):
            around = [_Convolutions.of(kernels, passes, weights, deltas) for weights in (attention, mlp)]
            layers[number] = replace(layers[number], around=(around[0], around[1]))
        self._layers, self._streams, self._fc = layers, passes.lines(streams), kernels.matrix(parts.fc)
        self._context_norm, self._norm = kernels.upload(parts.context_norm), kernels.upload(parts.norm)
        self._output, self._markov = (
            None if matrix is None else kernels.matrix(matrix) for matrix in (parts.output, parts.markov)
        )
        self._logits = passes.lines(config.draft_vocab_size, LOGIT_ROWS)
        self._vectors = passes.lines(config.markov_rank, LOGIT_ROWS)

    def store(self, rows: Rows, streams: Float32) -> None:
        """See `BlockPrograms`. Raises ValueError for a position past a context and a block, DeviceLost."""
        passes, count, described = self._passes, len(rows), self._passes.described(rows)
        passes.write(self._streams, streams)
        passes.linear([self._fc], self._streams, passes.x, count)
        passes.norm(passes.x, self._context_norm, passes.normed, count)
        for layer in self._context_layers:
            passes.project(layer, passes.normed, described, count)

    def draft(self, rows: Rows, embedded: Float32) -> BlockOutput:
        """See `BlockPrograms`. Raises ValueError for a position past a context and a block, DeviceLost."""
        passes, wanted, described = self._passes, len(rows.wanted), self._passes.described(rows)
        passes.write(passes.x, embedded)
        for layer in self._layers:
            passes.compute(layer, described, len(rows))
        states, logits = list[Float32](), list[Float32]()
        for first in range(0, wanted, LOGIT_ROWS):
            some = min(LOGIT_ROWS, wanted - first)
            passes.norm(passes.x, self._norm, passes.normed, some, described=described, first=first)
            states.append(passes.read(passes.normed, some, self._config.hidden_size))
            logits.append(self._product(self._output, passes.normed, some))
        return BlockOutput(np.concatenate(states), np.concatenate(logits))

    def previous(self, vectors: Float32) -> Float32:
        """See `BlockPrograms`. Raises DeviceLost."""
        found = list[Float32]()
        for first in range(0, len(vectors), LOGIT_ROWS):
            some = vectors[first : first + LOGIT_ROWS]
            self._passes.write(self._vectors, some)
            found.append(self._product(self._markov, self._vectors, len(some)))
        return np.concatenate(found)

    def _product(self, matrix: DeviceMatrix | None, x: Lines, count: int) -> Float32:
        """[count, draft vocabulary]; no columns without a matrix."""
        if matrix is None:
            return np.empty((count, 0), np.float32)
        self._passes.linear([matrix], x, self._logits, count)
        return self._passes.read(self._logits, count, self._config.draft_vocab_size)
