"""The content identifiers of a model directory: what exactly a receipt says was served."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ledger.cid import cid_of_json
from services.generation.target.checkpoint import weight_files
from services.generation.target.errors import ModelNotFound

_CONFIG = ("config.json", "generation_config.json")
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip


def base_cid(directory: Path) -> str:
    """Digest of the base's manifest: configuration, tokenizer and weights, each by name, size and SHA-256."""
    files = [_described(directory / name) for name in _CONFIG if (directory / name).exists()]
    weights = [_described(path) for path in weight_files(directory)]
    return cid_of_json(
        {"type": "kolm.base.v1", "config": files, "tokenizer": tokenizer_cid(directory), "weights": weights}
    )


def tokenizer_cid(directory: Path) -> str:
    """Digest of the tokenizer's manifest.

    Raises:
        ModelNotFound: the directory has no tokenizer file.
    """
    files = [_described(directory / name) for name in _TOKENIZER if (directory / name).exists()]
    if not files:
        raise ModelNotFound(f"{directory}: no tokenizer files; expected tokenizer.json")
    return cid_of_json({"type": "kolm.tokenizer.v1", "files": files})


def _described(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "size": path.stat().st_size, "digest": f"sha256:{digest}"}
