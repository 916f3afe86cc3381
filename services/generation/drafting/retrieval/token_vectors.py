"""A base's token embeddings, read straight from its safetensors: torch would cost more memory than all of a build."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from services.generation.target.config_document import architecture_of, read_document
from services.generation.target.errors import WeightsInvalid
from services.generation.target.weight_files import weight_files

_NAME = "model.embed_tokens.weight"
_TYPES: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """stored [vocab, hidden] float32 or float16; bfloat16 as the uint16 of its bits."""

    stored: NDArray[Any]

    @classmethod
    def of_base(cls, base: Path) -> TokenVectors:
        """Raises TargetError if the directory is not that of a base, or its table is not what config.json says."""
        document = read_document(base)
        architecture_of(document)
        for path in weight_files(base):
            try:
                with safe_open(path, framework="numpy") as shard:
                    if _NAME not in shard.keys():  # noqa: SIM118, it is no mapping
                        continue
                    table = shard.get_slice(_NAME)
                    shape, dtype = table.get_shape(), table.get_dtype()
            except (SafetensorError, OSError) as error:
                raise WeightsInvalid(
                    f"{path}: not a whole safetensors file ({error}); download or copy it again"
                ) from error
            expected = [document.get("vocab_size"), document.get("hidden_size")]
            if shape != expected or dtype not in _TYPES:
                raise WeightsInvalid(
                    f"{path}: {_NAME} is {dtype} {shape}; expected {expected} of {', '.join(_TYPES)}, as in config.json"
                )
            return cls(_read(path, shape, _TYPES[dtype]))
        raise WeightsInvalid(f"{base}: no tensor {_NAME} in its weights")

    @property
    def count(self) -> int:
        return len(self.stored)

    @property
    def dimensions(self) -> int:
        return int(self.stored.shape[1])

    def rows(self, which: NDArray[Any] | slice) -> NDArray[np.float32]:
        """[which, hidden], exact."""
        found = self.stored[which]
        if found.dtype != np.uint16:
            return found.astype(np.float32)
        wide = found.astype(np.uint32)
        wide <<= np.uint32(16)  # bfloat16 is the upper half of a float32
        return wide.view(np.float32)


def _read(path: Path, shape: list[int], dtype: type[np.generic]) -> NDArray[Any]:
    """A tensor of a file whose header has been checked (8 bytes of length, JSON, tensors)."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        begin, _ = json.loads(file.read(length))[_NAME]["data_offsets"]
        file.seek(8 + length + begin)
        stored: NDArray[Any] = np.fromfile(file, np.dtype(dtype).newbyteorder("<"), shape[0] * shape[1])
    return stored.reshape(shape)
