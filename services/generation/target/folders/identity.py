"""The content identifiers of a model. Receipts state by them which model was served."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from ledger.documents.base_manifest import BaseManifest
from ledger.documents.named_file import NamedFile
from ledger.encoding.canonical import canonical
from ledger.encoding.cid import cid_of_json
from services.generation.target.errors import ModelNotFound
from services.generation.target.files.gguf_file import GgufFile, is_gguf
from services.generation.target.files.gguf_metadata import gguf_sizes
from services.generation.target.files.safetensors_file import weight_files
from services.generation.target.folders.digests import FileDigests

_CONFIG = ("config.json", "generation_config.json")
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip
_GGUF = "model.gguf"  # in manifests, whatever the file is called


def base_manifest(path: Path, digests: FileDigests | None = None) -> BaseManifest:
    """Configuration, tokenizer and weights, each by name, size and SHA-256. Hashes everything that is not cached.

    The weights of a GGUF file are the whole file under the name model.gguf, and its config.json is `model_config`.

    Raises:
        ModelNotFound: there is no such file, or the directory has no tokenizer file.
        WeightsInvalid: the directory has no weights, or the GGUF file is damaged.
        ConfigInvalid: the GGUF file does not say what the model's sizes are.
    """
    digests = digests or FileDigests()
    if is_gguf(path):
        config = model_config(path)
        described = NamedFile(_CONFIG[0], len(config), f"sha256:{sha256(config).hexdigest()}")
        whole = NamedFile(_GGUF, path.stat().st_size, digests.digest(path))
        return BaseManifest(config=(described,), tokenizer_cid=tokenizer_cid(path), weights=(whole,))
    return BaseManifest(
        config=_described(path, _CONFIG, digests),
        tokenizer_cid=tokenizer_cid(path),
        weights=tuple(_part(file, digests) for file in weight_files(path)),
    )


def base_cid(path: Path) -> str:
    """The identifier of the base's manifest. Raises as `base_manifest` does."""
    return base_manifest(path).cid


def model_config(path: Path) -> bytes:
    """The manifest's config.json, which a registry holds heads against: the directory's, or a GGUF file's sizes."""
    if not is_gguf(path):
        return (path / _CONFIG[0]).read_bytes()
    return canonical(gguf_sizes(GgufFile.open(path).metadata))


def tokenizer_cid(path: Path) -> str:
    """Digest of the tokenizer's manifest; of a GGUF file, of all its metadata that begins with `tokenizer.`, so that
    files of one family can draft for each other.

    Raises:
        ModelNotFound: there is no such file, or the directory has no tokenizer file.
        WeightsInvalid: the GGUF file is damaged.
    """
    if is_gguf(path):
        digest = GgufFile.open(path).metadata.digest("tokenizer.")
        return cid_of_json({"type": "kolm.tokenizer.v1", "metadata": digest})
    files = [part.to_document() for part in _described(path, _TOKENIZER, FileDigests())]
    if not files:
        raise ModelNotFound(f"{path}: no tokenizer files; expected tokenizer.json")
    return cid_of_json({"type": "kolm.tokenizer.v1", "files": files})


def _described(directory: Path, names: tuple[str, ...], digests: FileDigests) -> tuple[NamedFile, ...]:
    return tuple(_part(directory / name, digests) for name in names if (directory / name).exists())


def _part(path: Path, digests: FileDigests) -> NamedFile:
    return NamedFile(path.name, path.stat().st_size, digests.digest(path))
