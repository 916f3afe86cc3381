"""The header of a safetensors file, read strictly: names, dtypes, shapes and places, before anybody maps a byte.

Format: 8 bytes little-endian length of the header, the header (a JSON object), the tensors' bytes without holes or
overlaps. Nothing here executes, maps or converts anything; a file of another format is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ledger.encoding.canonical import parse_json
from ledger.encoding.fields import Fields, checked_integer
from ledger.errors import FormatError

MAX_HEADER_BYTES = 16 * 1024 * 1024
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_MOST_DIMENSIONS = 8

ReadRange = Callable[[int, int], bytes]
"""The bytes of a file from a start, so many."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: where its bytes are in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def read_header(read: ReadRange, file_size: int) -> dict[str, Tensor]:
    """The tensors of a file of `file_size` bytes, by name. Raises FormatError for anything but a whole, tight file."""
    if file_size < 8:
        raise FormatError("header", f"is missing: the file has {file_size} bytes, safetensors begin with 8")
    length = int.from_bytes(read(0, 8), "little")
    if length > min(MAX_HEADER_BYTES, file_size - 8):
        raise FormatError("header", f"claims {length:,} bytes of a file of {file_size:,}: truncated, or no safetensors")
    document = parse_json(read(8, length), "header")
    if not isinstance(document, dict):
        raise FormatError("header", "expected a JSON object")
    document.pop("__metadata__", None)
    tensors = {name: _tensor(name, value, 8 + length) for name, value in document.items()}
    _check_tight(tensors, 8 + length, file_size)
    return tensors


def _tensor(name: str, value: object, base: int) -> Tensor:
    fields = Fields(value, name)
    dtype = fields.choice("dtype", _BYTES)
    shape = _integers(fields, "shape", _MOST_DIMENSIONS)
    offsets = _integers(fields, "data_offsets", 2)
    fields.close()
    size = math.prod(shape) * _BYTES[dtype]
    if len(offsets) != 2 or offsets[1] - offsets[0] != size:
        raise FormatError(f"{name}.data_offsets", f"expected two numbers {size} apart for {dtype} {list(shape)}")
    return Tensor(dtype, shape, base + offsets[0], size)


def _integers(fields: Fields, name: str, most: int) -> tuple[int, ...]:
    path, values = fields.path(name), fields.array(name)
    if len(values) > most:
        raise FormatError(path, f"has {len(values)} numbers, at most {most} are expected")
    return tuple(checked_integer(value, path) for value in values)


def _check_tight(tensors: dict[str, Tensor], start: int, file_size: int) -> None:
    """Every byte of the file belongs to exactly one tensor: none is hidden, none is missing."""
    position = start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size)):
        if tensor.start != position:
            raise FormatError(f"{name}.data_offsets", "leaves a hole, or overlaps another tensor")
        position += tensor.size
    if position != file_size:
        raise FormatError("data", f"ends at byte {position:,}, the file has {file_size:,}: truncated, or too long")
