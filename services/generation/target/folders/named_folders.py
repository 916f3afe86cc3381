"""Models and folders that settings name, held against what they should hold before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path

from pydantic import AfterValidator

from services.generation.target.errors import ModelNotFound
from services.generation.target.folders import folder_kinds
from services.generation.target.folders.model_path import model_path


def _model(named: Path) -> Path:
    try:
        return model_path(named)
    except ModelNotFound as error:
        raise ValueError(str(error)) from error


def _store(folder: Path) -> Path:
    return folder_kinds.STORE.check(folder)


def _sentences(folder: Path) -> Path:
    return folder_kinds.EMBEDDER.check(folder)


def _named_store(setting: str) -> str:
    _store(Path(setting.partition("=")[2]))
    return setting


def _named_adapter(setting: str) -> str:
    folder_kinds.ADAPTER.check(Path(setting.partition("=")[2]))
    return setting


def _head(setting: str) -> str:
    if "/" in setting:
        folder_kinds.HEAD.check(Path(setting))
    return setting


MODEL = AfterValidator(_model)
"""A model's directory or file, or the name of one; the setting gets the path."""
STORE = AfterValidator(_store)
"""A datastore's folder."""
NAMED_STORE = AfterValidator(_named_store)
"""TENANT=FOLDER."""
NAMED_ADAPTER = AfterValidator(_named_adapter)
"""NAME=FOLDER."""
SENTENCES = AfterValidator(_sentences)
"""A sentence-transformers directory."""
IF_FOLDER_A_HEAD = AfterValidator(_head)
"""A reference, or with a slash a head's folder."""
