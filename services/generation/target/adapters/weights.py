"""adapter_model.safetensors: names, shapes and dtypes checked against the configuration and the base."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from services.generation.target.adapters.config import SUPPORTED, AdapterConfig, ModuleUpdate
from services.generation.target.config import TargetConfig
from services.generation.target.errors import AdapterInvalid, AdapterUnsupported
from services.generation.target.weights.expected import expected_shapes

FILE = "adapter_model.safetensors"
_FLOATS = ("F32", "BF16", "F16")
_ROOT = "base_model.model."
_FOREIGN = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding_": "an adapted embedding",
    "modules_to_save": "a module saved whole",
    "embed_tokens": "embeddings saved whole",
    "lm_head": "a head saved whole",
    ".bias": "a bias",
    "token_adapter": "trained tokens",
}


@contextmanager
def open_adapter_weights(directory: Path, adapter: AdapterConfig, base: TargetConfig) -> Iterator[AdapterWeights]:
    """Open the weights of an adapter and check every tensor's name, shape and dtype.

    Raises:
        AdapterUnsupported: the file holds something other than low-rank updates of linear layers.
        AdapterInvalid: the file is missing or truncated; a tensor is missing, unknown, or of another shape or dtype.
    """
    path = directory / FILE
    if not path.exists():
        raise AdapterInvalid(f"{directory}: no {FILE}; pickle is not read")
    try:
        with safe_open(path, framework="pt") as file:
            _check(file, adapter, base, path)
            yield AdapterWeights(file, path)
    except (SafetensorError, OSError) as error:
        raise AdapterInvalid(f"{path}: not a whole safetensors file ({error}); download or copy it again") from error


class AdapterWeights:
    """The open file of one adapter."""

    def __init__(self, file: Any, path: Path) -> None:
        self._file = file
        self._path = path

    def read(self, update: ModuleUpdate, part: str) -> torch.Tensor:
        """lora_A [rank, in] or lora_B [out, rank] in float32, exact from bfloat16 and float16.

        Raises AdapterInvalid where a value is not finite.
        """
        name = _name(update, part)
        tensor: torch.Tensor = self._file.get_tensor(name).to(torch.float32).contiguous()
        if not bool(torch.isfinite(tensor).all()):
            raise AdapterInvalid(f"{self._path}: {name} holds values that are not finite; train or convert it again")
        return tensor


def _name(update: ModuleUpdate, part: str) -> str:
    return f"{_ROOT}{update.module}.{part}.weight"


def _check(file: Any, adapter: AdapterConfig, base: TargetConfig, path: Path) -> None:
    expected = _expected(adapter, base)
    found = set(file.keys())
    for name in sorted(found - expected.keys()):
        _refuse(name, path)
    missing = sorted(expected.keys() - found)
    if missing:
        raise AdapterInvalid(f"{path}: {_listing(missing)} missing, which adapter_config.json calls for")
    for name, shape in expected.items():
        tensor = file.get_slice(name)
        if tuple(tensor.get_shape()) != shape:
            raise AdapterInvalid(
                f"{path}: {name} has shape {tensor.get_shape()}; adapter_config.json and this base make it "
                f"{list(shape)}; is the adapter for another base?"
            )
        if tensor.get_dtype() not in _FLOATS:
            raise AdapterInvalid(f"{path}: {name} has dtype {tensor.get_dtype()}; expected one of {', '.join(_FLOATS)}")


def _expected(adapter: AdapterConfig, base: TargetConfig) -> dict[str, tuple[int, int]]:
    shapes = expected_shapes(base)
    expected: dict[str, tuple[int, int]] = {}
    for update in adapter.updates:
        rows, columns = shapes[f"{update.module}.weight"]
        expected[_name(update, "lora_A")] = (update.rank, columns)
        expected[_name(update, "lora_B")] = (rows, update.rank)
    return expected


def _refuse(name: str, path: Path) -> None:
    for mark, what in _FOREIGN.items():
        if mark in name:
            raise AdapterUnsupported(f"{path}: {name} is {what}, not supported; supported: LoRA on {SUPPORTED}")
    raise AdapterInvalid(
        f"{path}: {name} is nothing that adapter_config.json calls for on this base; is the adapter for another base?"
    )


def _listing(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
