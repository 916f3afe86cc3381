"""adapter_model.safetensors: names, shapes and dtypes checked against the configuration and the base."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.generation.target.adapters.config import SUPPORTED, AdapterConfig, ModuleUpdate
from services.generation.target.config.config import TargetConfig
from services.generation.target.errors import AdapterInvalid, AdapterUnsupported, WeightsInvalid
from services.generation.target.files.safetensors_file import FLOATS, floats, read_parts
from services.generation.target.files.safetensors_parts import Part
from services.generation.target.weights.expected import expected_shapes

FILE = "adapter_model.safetensors"
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


def open_adapter_weights(directory: Path, adapter: AdapterConfig, base: TargetConfig) -> AdapterWeights:
    """Open the weights of an adapter and check every tensor's name, shape and dtype.

    Raises:
        AdapterUnsupported: the file holds something other than low-rank updates of linear layers.
        AdapterInvalid: the file is missing or truncated; a tensor is missing, unknown, or of another shape or dtype.
    """
    path = directory / FILE
    if not path.exists():
        raise AdapterInvalid(f"{directory}: no {FILE}; pickle is not read")
    try:
        parts = read_parts(path)
    except WeightsInvalid as error:
        raise AdapterInvalid(str(error)) from error
    _check(parts, adapter, base, path)
    return AdapterWeights(parts, path)


class AdapterWeights:
    """The open file of one adapter."""

    def __init__(self, parts: Mapping[str, Part], path: Path) -> None:
        self._parts = parts
        self._path = path

    def read(self, update: ModuleUpdate, part: str) -> NDArray[np.float32]:
        """lora_A [rank, in] or lora_B [out, rank] in float32, exact from bfloat16 and float16.

        Raises AdapterInvalid where a value is not finite.
        """
        name = _name(update, part)
        values = floats(name, self._parts[name])
        if not np.isfinite(values).all():
            raise AdapterInvalid(f"{self._path}: {name} holds values that are not finite; train or convert it again")
        return values


def _name(update: ModuleUpdate, part: str) -> str:
    return f"{_ROOT}{update.module}.{part}.weight"


def _check(parts: Mapping[str, Part], adapter: AdapterConfig, base: TargetConfig, path: Path) -> None:
    expected = _expected(adapter, base)
    found = set(parts)
    for name in sorted(found - expected.keys()):
        _refuse(name, path)
    missing = sorted(expected.keys() - found)
    if missing:
        raise AdapterInvalid(f"{path}: {_listing(missing)} missing, which adapter_config.json calls for")
    for name, shape in expected.items():
        part = parts[name]
        if part.shape != shape:
            raise AdapterInvalid(
                f"{path}: {name} has shape {list(part.shape)}; adapter_config.json and this base make it "
                f"{list(shape)}; is the adapter for another base?"
            )
        if part.dtype not in FLOATS:
            raise AdapterInvalid(f"{path}: {name} has dtype {part.dtype}; expected one of {', '.join(FLOATS)}")


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
