"""Settings that name models and folders, checked before heavy imports, and adapters next to a model."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import AfterValidator

from services.generation.target.adapters import base_names, is_named
from services.generation.target.errors import ModelNotFound
from services.generation.target.model_path import (
    ADAPTER_FOLDER,
    HEAD_FOLDER,
    STORE_FOLDER,
    FolderKind,
    model_path,
    places,
)

PACKED_BYTES = 20 << 30
"""The default size limit of packed weights on disk (`program/packed_files.py`)."""
STORE = AfterValidator(STORE_FOLDER.check)
"""A datastore's folder."""


def _model(named: Path) -> Path:
    try:
        return model_path(named)
    except ModelNotFound as error:
        raise ValueError(str(error)) from error


def _named(kind: FolderKind) -> AfterValidator:
    """A check of the folder in NAME=FOLDER."""

    def check(setting: str) -> str:
        kind.check(Path(setting.partition("=")[2]))
        return setting

    return AfterValidator(check)


def _head(setting: str) -> str:
    if "/" in setting:
        HEAD_FOLDER.check(Path(setting))
    return setting


MODEL = AfterValidator(_model)
"""A model's directory, file or name; the setting becomes the path."""
NAMED_STORE = _named(STORE_FOLDER)
"""TENANT=FOLDER."""
NAMED_ADAPTER = _named(ADAPTER_FOLDER)
"""NAME=FOLDER."""
IF_FOLDER_A_HEAD = AfterValidator(_head)
"""A reference to a head, or, if it has a slash, a head's folder."""


def default_adapters_for(model: Path) -> dict[str, Path]:
    """LoRA adapters in folders next to a model that name it as their base, by the names of their folders."""
    found: dict[str, Path] = {}
    configs = [config for place in places(model) for config in sorted(place.glob("adapters/*/adapter_config.json"))]
    names = base_names(model) if configs else frozenset[str]()
    for config in configs:
        if _is_for(config, names):
            found.setdefault(config.parent.name, config.parent)
    return found


def _is_for(config: Path, bases: frozenset[str]) -> bool:
    try:
        base = json.loads(config.read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
    return isinstance(base, str) and is_named(base, bases)
