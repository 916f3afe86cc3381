"""How an adapter is named, and what it may call its base."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from ledger.encoding.cid import cid_of_json

_GGUF = re.compile(r"([.-](I?Q[0-9][0-9A-Z_]*|BF16|F16|F32))?\.gguf$", re.IGNORECASE)

FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True, slots=True)
class AdapterIdentity:
    """An adapter as requests and receipts name it."""

    name: str
    cid: str


def adapter_cid(directory: Path) -> str:
    """Digest of the adapter's manifest: configuration and weights, each by name, size and SHA-256."""
    files = [_described(directory / name) for name in FILES]
    return cid_of_json({"type": "kolm.adapter.v1", "files": files})


def _described(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "size": path.stat().st_size, "digest": f"sha256:{digest}"}


def base_names(directory: Path) -> frozenset[str]:
    """The names by which an adapter may know the base in `directory`: the folder's own, and those of a download cache.

    The Hugging Face cache keeps a model in models--<owner>--<name>/snapshots/<revision>. GGUF files are called
    <name>.<quantisation>.gguf or <name>-<quantisation>.gguf.
    """
    parts = directory.resolve().parts
    cached = {part.rpartition("--")[2] for part in parts if part.startswith("models--")}
    files = {_GGUF.sub("", name) for name in (directory.name, parts[-1])}
    return frozenset({directory.name, parts[-1], *files, *cached} - {""})
