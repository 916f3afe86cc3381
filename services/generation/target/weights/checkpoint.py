"""The weights of a model as torch tensors: checked against its configuration before a byte is converted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from services.generation.target.config.config import TargetConfig
from services.generation.target.weights.expected import checked_weights
from services.generation.target.weights.weights import Weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Checkpoint:
    """The open weights of one model; a tensor is read from disk when it is asked for and kept by nobody."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def stored(self, name: str) -> torch.Tensor:
        """The tensor in the dtype it is stored in; float32 of quantised weights."""
        tensor = self._weights.tensor(name)
        if tensor.storage not in _DTYPES:
            return torch.from_numpy(tensor.values())
        return torch.from_numpy(tensor.data.copy()).view(_DTYPES[tensor.storage])

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The tensor, converted; exact to float32."""
        return self.stored(name).to(dtype)


@contextmanager
def open_checkpoint(path: Path, config: TargetConfig) -> Iterator[Checkpoint]:
    """Open the weights of a model directory or a GGUF file and check all names, shapes and storages.

    Raises:
        WeightsInvalid: a file is missing or truncated, a tensor is missing, unknown, or of another shape or storage.
    """
    yield Checkpoint(checked_weights(path, config))
