"""The convolutions of a DFlash2 head round each part of its layers: along the rows of a block, with factors that each
row computes itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.generation.drafting.block.block_checkpoint import BASE_KERNEL, KERNEL_PROJECTION, BlockConfig
from services.generation.target.arrays import Float32
from services.generation.target.program.matrices import Matrix, Read, matrix_of, vector
from services.generation.target.program.operations import Operations


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
