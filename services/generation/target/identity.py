"""The content identifiers of a model directory: what exactly a receipt says was served."""

from __future__ import annotations

from pathlib import Path

from ledger.base_manifest import BaseManifest
from ledger.cid import cid_of_json
from ledger.part import Part
from services.generation.target.digests import FileDigests
from services.generation.target.errors import ModelNotFound
from services.generation.target.weight_files import weight_files

_CONFIG = ("config.json", "generation_config.json")
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip


def base_manifest(directory: Path, digests: FileDigests | None = None) -> BaseManifest:
    """Configuration, tokenizer and weights, each by name, size and SHA-256. Hashes everything that is not cached.

    Raises:
        ModelNotFound: the directory has no tokenizer file.
        WeightsInvalid: it has no weights.
    """
    digests = digests or FileDigests()
    return BaseManifest(
        config=_described(directory, _CONFIG, digests),
        tokenizer_cid=tokenizer_cid(directory),
        weights=tuple(_part(path, digests) for path in weight_files(directory)),
    )


def base_cid(directory: Path) -> str:
    """The identifier of the base's manifest. Raises as `base_manifest` does."""
    return base_manifest(directory).cid


def tokenizer_cid(directory: Path) -> str:
    """Digest of the tokenizer's manifest.

    Raises:
        ModelNotFound: the directory has no tokenizer file.
    """
    files = [part.to_document() for part in _described(directory, _TOKENIZER, FileDigests())]
    if not files:
        raise ModelNotFound(f"{directory}: no tokenizer files; expected tokenizer.json")
    return cid_of_json({"type": "kolm.tokenizer.v1", "files": files})


def _described(directory: Path, names: tuple[str, ...], digests: FileDigests) -> tuple[Part, ...]:
    return tuple(_part(directory / name, digests) for name in names if (directory / name).exists())


def _part(path: Path, digests: FileDigests) -> Part:
    return Part(path.name, path.stat().st_size, digests.digest(path))
