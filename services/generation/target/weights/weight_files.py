"""Which files of a transformers directory hold its weights."""

from __future__ import annotations

import json
from pathlib import Path

from services.generation.target.errors import WeightsInvalid


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
