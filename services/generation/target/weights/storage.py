"""How weights are stored: plain numbers, or GGUF's blocks of small integers with scales."""

from __future__ import annotations

from dataclasses import dataclass

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of `block_weights` weights takes `block_bytes` bytes; of these, `halves` bytes starting at byte
    `halves_at` are float16 scales and minima. Plain numbers are blocks of one weight without scales.
    """

    name: str
    ggml: GGMLQuantizationType
    halves: int = 0
    halves_at: int = 0

    @property
    def block_weights(self) -> int:
        return int(GGML_QUANT_SIZES[self.ggml][0])

    @property
    def block_bytes(self) -> int:
        return int(GGML_QUANT_SIZES[self.ggml][1])

    @property
    def quantised(self) -> bool:
        return self.halves > 0

    def row_bytes(self, weights: int) -> int:
        """Bytes of a row. Raises ValueError where it does not end with a block."""
        if weights % self.block_weights:
            raise ValueError(f"a row of {weights} weights is no whole number of {self.name}'s {self.block_weights}")
        return weights // self.block_weights * self.block_bytes


STORAGES = {
    storage.name: storage
    for storage in (
        Storage("float32", GGMLQuantizationType.F32),
        Storage("bfloat16", GGMLQuantizationType.BF16),
        Storage("float16", GGMLQuantizationType.F16),
        Storage("q8_0", GGMLQuantizationType.Q8_0, halves=2),
        Storage("q4_0", GGMLQuantizationType.Q4_0, halves=2),
        Storage("q4_1", GGMLQuantizationType.Q4_1, halves=4),
        Storage("q4_k", GGMLQuantizationType.Q4_K, halves=4),
        Storage("q5_k", GGMLQuantizationType.Q5_K, halves=4),
        Storage("q6_k", GGMLQuantizationType.Q6_K, halves=2, halves_at=208),
    )
}
"""By name; the names are those of `StoredTensor.storage`."""
