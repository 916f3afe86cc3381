"""Files beside a model: `head`, `store` and `adapters`, in its own folder or in the one that it lies in.

For a model that comes as a package they lie in `<folder of models>/<name>` (`model_path.models_folder`). Whether a head
or a datastore is for this model is found out where it is loaded; adapters say whose they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from services.generation.target.adapters.identity import base_names
from services.generation.target.folders.model_path import models_folder, packaged


def head_beside(model: Path) -> Path | None:
    """A draft head's folder."""
    return next((place / "head" for place in _places(model) if (place / "head" / "config.json").is_file()), None)


def store_beside(model: Path) -> Path | None:
    """A datastore's folder."""
    return next((place / "store" for place in _places(model) if (place / "store" / "manifest.json").is_file()), None)


def adapters_beside(model: Path) -> dict[str, Path]:
    """LoRA adapters that name this model as their base, by the names of their folders."""
    found: dict[str, Path] = {}
    for place in _places(model):
        for config in sorted(place.glob("adapters/*/adapter_config.json")):
            if _names(config, base_names(model)):
                found.setdefault(config.parent.name, config.parent)
    return found


def _places(model: Path) -> Iterator[Path]:
    for name, path in packaged().items():
        if path == model:
            yield models_folder() / name
            return
    model = model.resolve()
    if model.is_dir():
        yield model
    yield model.parent


def _names(config: Path, bases: frozenset[str]) -> bool:
    try:
        base = json.loads(config.read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
    return isinstance(base, str) and base.rstrip("/").rpartition("/")[2] in bases
