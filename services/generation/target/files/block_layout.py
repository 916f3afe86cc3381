"""How weights lie in published files: plain numbers, or GGUF's blocks of small integers with scales."""

from __future__ import annotations

from dataclasses import dataclass

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Of each block, `halves` bytes starting at byte `halves_at` are float16 scales and minima.

    Plain numbers are blocks of one weight without scales.
    """

    storage: str
    ggml: GGMLQuantizationType
    halves: int = 0
    halves_at: int = 0

    @property
    def weights(self) -> int:
        """Of a block."""
        return int(GGML_QUANT_SIZES[self.ggml][0])

    @property
    def size(self) -> int:
        """Bytes of a block."""
        return int(GGML_QUANT_SIZES[self.ggml][1])

    def row_bytes(self, weights: int) -> int:
        """Raises ValueError where a row of so many weights does not end with a block."""
        if weights % self.weights:
            raise ValueError(f"a row of {weights} weights is no whole number of {self.storage}'s {self.weights}")
        return weights // self.weights * self.size


LAYOUTS = {
    layout.storage: layout
    for layout in (
        BlockLayout("float32", GGMLQuantizationType.F32),
        BlockLayout("bfloat16", GGMLQuantizationType.BF16),
        BlockLayout("float16", GGMLQuantizationType.F16),
        BlockLayout("q8_0", GGMLQuantizationType.Q8_0, halves=2),
        BlockLayout("q4_0", GGMLQuantizationType.Q4_0, halves=2),
        BlockLayout("q4_1", GGMLQuantizationType.Q4_1, halves=4),
        BlockLayout("q4_k", GGMLQuantizationType.Q4_K, halves=4),
        BlockLayout("q5_k", GGMLQuantizationType.Q5_K, halves=4),
        BlockLayout("q6_k", GGMLQuantizationType.Q6_K, halves=2, halves_at=208),
        BlockLayout("mxfp4", GGMLQuantizationType.MXFP4),
    )
}
"""By `StoredTensor.storage`."""
