"""A tensor of a model in its published storage, and its float32 values."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from services.generation.target.arrays import Bytes, Float32, Int64
from services.generation.target.errors import ModelNotFound, WeightsInvalid

_BEGINNING = 256  # bytes of a file that are inspected
_CHECKED_BYTES = 1 << 20  # per step, so that intermediate results stay in the cache
_LARGEST_EXPONENT = 252  # of mxfp4: 6 * 2^(252 - 127) is the largest value below 2^128


def map_file(path: Path) -> Bytes:
    """Map a file, read-only; it is unmapped once nothing refers to it.

    Raises:
        ModelNotFound: there is no such file.
        WeightsInvalid: it is empty, a directory, unreadable, or clearly something other than weights.
    """
    try:
        with path.open("rb") as file:
            data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        if other := _something_else(data[:_BEGINNING].tobytes()):
            raise WeightsInvalid(f"{path}: {other}")
        return data
    except FileNotFoundError as error:
        raise ModelNotFound(f"{path}: no such file") from error
    except (OSError, ValueError) as error:  # mmap raises ValueError for an empty file
        raise WeightsInvalid(f"{path}: cannot be read: {error}; download or copy it again") from error


def _something_else(beginning: bytes) -> str:
    """A message about a file that is often found in place of weights; empty for others."""
    if beginning.startswith(b"version https://git-lfs.github.com/spec/"):
        return "a Git LFS pointer, expected the weights; fetch them: git lfs pull"
    if beginning.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "an HTML page, expected weights; download the file itself"
    if beginning.lstrip().startswith(b"{") and b"\0" not in beginning[:8]:  # the size of a header has zeros
        return "a JSON text, such as a server's error, expected weights; download the file itself"
    if beginning.startswith((b"PK\x03\x04", b"\x80\x02\x8a\n")):
        return "a file of torch.save, expected safetensors or GGUF; pickle is not read"
    if beginning.startswith((b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd")):
        return "a compressed file (gzip, zstd), expected the weights; unpack it"
    if beginning.startswith((b"lmgg", b"fmgg", b"tjgg", b"algg")):
        return "a GGML file from before GGUF; take a GGUF file, or convert the original model with a recent llama.cpp"
    return ""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A block's layout in a file: `halves` bytes at byte `halves_at` are float16 scales and minima.

    Plain numbers are blocks of one weight without scales.
    """

    storage: str
    ggml: GGMLQuantizationType
    halves: int = 0
    halves_at: int = 0

    @property
    def weights(self) -> int:
        """Weights of a block."""
        return int(GGML_QUANT_SIZES[self.ggml][0])

    @property
    def size(self) -> int:
        """Bytes of a block."""
        return int(GGML_QUANT_SIZES[self.ggml][1])

    def row_bytes(self, weights: int) -> int:
        """Bytes of a row of `weights` weights. Raises ValueError unless these are whole blocks."""
        if weights % self.weights:
            raise ValueError(f"a row has {weights} weights; expected a multiple of {self.storage}'s {self.weights}")
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
        BlockLayout("q5_0", GGMLQuantizationType.Q5_0, halves=2),
        BlockLayout("q5_1", GGMLQuantizationType.Q5_1, halves=4),
        BlockLayout("iq4_nl", GGMLQuantizationType.IQ4_NL, halves=2),
        BlockLayout("q4_k", GGMLQuantizationType.Q4_K, halves=4),
        BlockLayout("q5_k", GGMLQuantizationType.Q5_K, halves=4),
        BlockLayout("q6_k", GGMLQuantizationType.Q6_K, halves=2, halves_at=208),
        BlockLayout("mxfp4", GGMLQuantizationType.MXFP4),
    )
}
"""Layouts by `StoredTensor.storage`."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A matrix [out, in] or a vector [size]. `data` is [out, bytes of a row] or [bytes], little endian, read-only if it
    is mapped from disk. GGUF's blocks are as in the file.
    """

    name: str
    """The name in transformers' model, for example model.layers.0.self_attn.q_proj.weight."""
    storage: str
    """One of `LAYOUTS`."""
    shape: tuple[int, ...]
    data: Bytes

    @classmethod
    def of_bytes(cls, name: str, storage: str, shape: tuple[int, ...], data: Bytes) -> StoredTensor:
        """`data` [bytes] as rows. Raises ValueError if it does not fit the shape."""
        *outer, inner = shape or (1,)
        return cls(name, storage, shape, data.reshape(*outer, LAYOUTS[storage].row_bytes(inner)))

    @classmethod
    def of_values(cls, name: str, values: Float32) -> StoredTensor:
        """Plain numbers: bfloat16 if it represents all of them exactly, else float32."""
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        if (bits & 0xFFFF).any():
            return cls(name, "float32", values.shape, bits.view(np.uint8))
        return cls(name, "bfloat16", values.shape, (bits >> 16).astype(np.uint16).view(np.uint8))

    def values(self) -> Float32:
        """The weights in float32, [shape]: the values with which every pass computes.

        Exact for plain numbers. Blocks are dequantised as in GGUF: q8_0 d·q; q4_0 d·(q − 8); q5_0 d·(q − 16); q4_1 and
        q5_1 d·q + m; iq4_nl d·v, v one of sixteen whole numbers from −127 to 113; q4_k and q5_k (d·scale)·q −
        (dmin·min); q6_k (d·scale)·(q − 32). A float16 has 11 significant bits and its integer factors at most 12
        together, so that every product is exact in float32, and only the sum of q4_1 and q5_1 and the difference of
        q4_k and q5_k round, once: a fused multiply-add gives equal bits. Nothing overflows (at most 65504·128·32) or is
        subnormal (at least 2^-24). mxfp4 is v·2^(e − 127), exact even if it is subnormal. May share memory with
        `data`.
        """
        if self.storage == "float32":
            return self.data.view("<f4")
        if self.storage == "float16":
            return self.data.view("<f2").astype(np.float32)
        if self.storage == "bfloat16":
            return (self.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        with np.errstate(invalid="ignore"):  # check_finite reports scales that are not finite
            found: Float32 = dequantize(self.data, LAYOUTS[self.storage].ggml)
        return found

    def rounded(self, storage: str = "q4_1") -> StoredTensor:
        """A matrix with its values rounded to q4_1 or q8_0; unchanged if rows are not whole blocks, or a scale or a
        minimum would not be finite in float16.
        """
        layout = LAYOUTS[storage]
        if len(self.shape) < 2 or self.shape[1] % layout.weights:
            return self
        with np.errstate(over="ignore", invalid="ignore"):
            data: Bytes = quantize(np.ascontiguousarray(self.values(), np.float32), layout.ggml)
        finite = _finite(data.reshape(-1, layout.size), layout)
        return StoredTensor(self.name, layout.storage, self.shape, data) if finite else self

    def rows(self, which: Int64 | slice) -> Float32:
        """The values of some rows of a matrix, [which, in]; a copy."""
        chosen = np.array(self.data[which])
        return replace(self, shape=(len(chosen), *self.shape[1:]), data=chosen).values()

    def check_finite(self) -> None:
        """Check every stored value; of quantised weights, every scale.

        Raises:
            WeightsInvalid: a value is infinite or not a number.
        """
        layout = LAYOUTS[self.storage]
        blocks = self.data.reshape(-1, layout.size)
        step = _CHECKED_BYTES // layout.size
        for start in range(0, len(blocks), step):
            if not _finite(blocks[start : start + step], layout):
                raise WeightsInvalid(
                    f"weights: {self.name} ({self.storage}) has a value that is infinite or not a number; "
                    "download the file again or use another model"
                )


def _finite(blocks: Bytes, layout: BlockLayout) -> bool:
    if layout.storage == "float32":
        return bool(np.isfinite(blocks.view("<f4")).all())
    if layout.storage == "mxfp4":  # 255 is not a number; with 253 or 254, six times the scale may be infinite
        return bool((blocks[:, 0] <= _LARGEST_EXPONENT).all())
    if layout.halves:
        blocks = np.ascontiguousarray(blocks[:, layout.halves_at : layout.halves_at + layout.halves])
    exponent = 0x7F80 if layout.storage == "bfloat16" else 0x7C00  # all ones for infinity and NaN
    return not bool(((blocks.view("<u2") & exponent) == exponent).any())
