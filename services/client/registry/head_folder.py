"""A head in a folder in kolm's layout, and its manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ledger.documents.draft_head_manifest import DraftHeadManifest
from ledger.documents.named_file import NamedFile
from ledger.encoding.canonical import parse_json
from ledger.encoding.fields import Fields, checked_integer
from ledger.errors import FormatError

CONFIG_FILE, WEIGHTS_FILE, TRAINING_FILE = "config.json", "model.safetensors", "training.json"

_LARGEST_TEXT = 1024 * 1024


class HeadFolderInvalid(Exception):
    """The folder is no head in kolm's layout; the message says what is wrong and what to do."""


def manifest_of(folder: Path, base_cid: str, annotations: Mapping[str, str] | None = None) -> DraftHeadManifest:
    """The manifest of a head for this base; the same folder and annotations always give the same one.

    `training.json`, if there is one, holds the facts about the head's training. Raises HeadFolderInvalid.
    """
    try:
        config = _text(folder / CONFIG_FILE)
        fields = Fields(parse_json(config, CONFIG_FILE))
        manifest = DraftHeadManifest(
            subject=base_cid,
            config=NamedFile.of(CONFIG_FILE, config),
            weights=(_named(folder / WEIGHTS_FILE),),
            hidden_size=fields.integer("hidden_size", 1),
            feature_layers=tuple(checked_integer(layer, "feature_layers") for layer in fields.array("feature_layers")),
            vocab_size=fields.integer("vocab_size", 1),
            draft_vocab_size=fields.integer("draft_vocab_size", 1),
            training=_training(folder / TRAINING_FILE),
            annotations=dict(annotations or {}),
        )
        return DraftHeadManifest.from_bytes(manifest.to_bytes())
    except FormatError as error:
        hint = "; `kolm heads convert` writes kolm's layout from others" if error.field == "feature_layers" else ""
        raise HeadFolderInvalid(f"{folder}: {error}{hint}") from error
    except OSError as error:
        raise HeadFolderInvalid(f"{folder}: cannot read {error.filename}: {error.strerror}") from None


def training_of(folder: Path) -> dict[str, Any]:
    """The facts about a head's training, empty if its folder holds none. Raises HeadFolderInvalid."""
    try:
        return _training(folder / TRAINING_FILE)
    except FormatError as error:
        raise HeadFolderInvalid(f"{folder}: {error}") from error
    except OSError as error:
        raise HeadFolderInvalid(f"{folder}: cannot read {error.filename}: {error.strerror}") from None


def _training(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    facts = parse_json(_text(path), TRAINING_FILE)
    if not isinstance(facts, dict):
        raise FormatError(TRAINING_FILE, "expected a JSON object")
    return facts


def _text(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_LARGEST_TEXT + 1)
    if len(data) > _LARGEST_TEXT:
        raise FormatError(path.name, f"is larger than {_LARGEST_TEXT} bytes")
    return data


def _named(path: Path) -> NamedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return NamedFile(path.name, path.stat().st_size, f"sha256:{digest}")
