"""The weights of a transformers directory: one safetensors file or several, mapped from disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from services.generation.target.errors import WeightsInvalid
from services.generation.target.families.family import Family
from services.generation.target.files.mapped_file import map_file
from services.generation.target.files.safetensors_parts import Part, parts_of
from services.generation.target.files.stored_tensor import StoredTensor

FLOATS = ("F32", "BF16", "F16")
_STORAGES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "MXFP4": "mxfp4"}


class SafetensorsFiles:
    """The open files of one model, as `weights.Weights`."""

    def __init__(self, path: Path, parts: Mapping[str, Part]) -> None:
        self.path = path
        self._parts = parts

    @classmethod
    def open(cls, directory: Path, family: Family | None = None) -> SafetensorsFiles:
        """`family`: whose names tensors get. Raises WeightsInvalid: a file is missing, or is not a whole safetensors
        file, or holds experts in a form that is not known.
        """
        entries: dict[str, Part] = {}
        for path in weight_files(directory):
            entries.update(read_parts(path))
        return cls(directory, parts_of(family, entries))

    def names(self) -> frozenset[str]:
        return frozenset(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._parts[name].shape

    def storage(self, name: str) -> str:
        dtype = self._parts[name].dtype
        if dtype not in _STORAGES:
            raise WeightsInvalid(
                f"{self.path}: {name} has dtype {dtype}; expected one of {', '.join(_STORAGES)}: use the original model"
            )
        return _STORAGES[dtype]

    def tensor(self, name: str) -> StoredTensor:
        part = self._parts[name]
        return StoredTensor.of_bytes(name, self.storage(name), part.shape, part.read())


def read_parts(path: Path) -> dict[str, Part]:
    """The tensors of one file by their names in it. Raises WeightsInvalid for one that is not whole."""
    try:
        with safe_open(path, framework="numpy"):
            pass  # it has checked the header: sizes fit dtypes and shapes, and tensors fill the file without a gap
        data = map_file(path)
        begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
        header: dict[str, Any] = json.loads(data[8:begin].tobytes())
        return {name: _entry(field, data[begin:]) for name, field in header.items() if name != "__metadata__"}
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsInvalid(f"{path}: not a whole safetensors file ({error}); download or copy it again") from error


def _entry(field: dict[str, Any], data: NDArray[np.uint8]) -> Part:
    begin, end = field["data_offsets"]
    return Part(field["dtype"], tuple(field["shape"]), lambda: data[begin:end])


def floats(name: str, part: Part) -> NDArray[np.float32]:
    """The values of a tensor of `FLOATS` in float32, exact; a copy."""
    return StoredTensor.of_bytes(name, _STORAGES[part.dtype], part.shape, part.read()).values().copy()


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of the model: the one file, or the shards that the index names, in order.

    Raises:
        WeightsInvalid: there are none, or the index is not readable or names a file outside the directory.
    """
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        single = directory / "model.safetensors"
        if single.exists():
            return [single]
        raise WeightsInvalid(
            f"{directory}: no model.safetensors and no model.safetensors.index.json; pickle is not read"
        )
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise WeightsInvalid(f"{index}: not a readable index of weight shards: {error!r}") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (directory / name).exists():
            raise WeightsInvalid(f"{index}: shard {name!r} is not a file of {directory}")
    return [directory / name for name in names]
