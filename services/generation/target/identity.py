"""Content identifiers of a model, by which receipts state the served model."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ledger.documents.manifests import BaseManifest, NamedFile
from ledger.durable_file import write_durably
from ledger.encoding.canonical import canonical
from ledger.encoding.text_forms import cid_of_json
from services.generation.target.errors import ModelNotFound, TargetError, WeightsInvalid
from services.generation.target.files.gguf_file import GgufFile, Stamp, file_stamp, is_gguf
from services.generation.target.files.gguf_header import gguf_sizes
from services.generation.target.files.part_names import PartName, sibling_paths
from services.generation.target.files.safetensors import weight_files
from services.generation.target.kernels.compilation import user_cache
from services.generation.target.progress import Progress

_log = logging.getLogger(__name__)

LARGE_BYTES = 64 * 1024 * 1024
"""Smaller files are hashed each time, which is fast enough."""

_READ_BYTES = 1 << 20  # a buffer that stays in a core's cache, and for which another thread is seldom waited for
_ONE_FILE = threading.Lock()  # a file is hashed once if two threads ask for its digest
_ONE_WRITER = threading.Lock()  # of the cache
_PUBLISHED = re.compile(r"(?:sha256-)?([0-9a-f]{64})")

_CONFIG = ("config.json", "generation_config.json")
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip
_GGUF = "model.gguf"  # the name in manifests

HashProgress = Callable[[Path, int], None]
"""Is called with a file and the number of its hashed bytes."""


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/kolm/digests.json`, or under `~/.cache`."""
    return user_cache() / "digests.json"


def logged() -> HashProgress:
    """Progress that is logged every few seconds."""
    files: dict[Path, Progress] = {}

    def log(path: Path, position: int) -> None:
        if path not in files:
            files[path] = Progress(f"hashing {path.name}", path.stat().st_size)
        files[path].reach(position)

    return log


@dataclass(frozen=True, slots=True)
class FileDigests:
    """Digests of files. Digests of large files are kept in `cache`, whose errors are ignored."""

    cache: Path = field(default_factory=default_cache)
    progress: HashProgress = field(default_factory=logged)

    def digest(self, path: Path) -> str:
        """`sha256:<hex>`. Raises OSError."""
        if path.stat().st_size < LARGE_BYTES:
            return self._hash(path)
        with _ONE_FILE:
            return self._digest(path)

    def _digest(self, path: Path) -> str:
        stamp, kept = _stamp(path), self._known().get(str(path.resolve()), {})
        if isinstance(kept, dict) and kept.get("stamp") == stamp and isinstance(kept.get("digest"), str):
            self.progress(path, path.stat().st_size)
            return str(kept["digest"])
        found = self._hash(path)
        if _stamp(path) == stamp:  # not modified meanwhile
            self._keep(path, stamp, found)
        return found

    def keep(self, path: Path, digest: str) -> None:
        """Keep the digest of a file that this process has written."""
        self._keep(path, _stamp(path), digest)

    def _hash(self, path: Path) -> str:
        sha256, position = hashlib.sha256(), 0
        buffer = memoryview(bytearray(_READ_BYTES))
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                sha256.update(buffer[:count])
                position += count
                self.progress(path, position)
        return "sha256:" + sha256.hexdigest()

    def _known(self) -> dict[str, Any]:
        try:
            known = json.loads(self.cache.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}

    def _keep(self, path: Path, stamp: list[int], digest: str) -> None:
        with _ONE_WRITER:
            known = self._known() | {str(path.resolve()): {"stamp": stamp, "digest": digest}}
            try:
                write_durably(self.cache, json.dumps(known).encode())
            except OSError as error:
                _log.warning("cannot write digests to %s: %s", self.cache, error)


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def base_manifest(path: Path, digests: FileDigests | None = None) -> BaseManifest:
    """Configuration, tokenizer and weights, each by name, size and SHA-256. Hashes all files without cached digests.

    The weights of a GGUF model are its files under the name model.gguf, or model-00001-of-00003.gguf and so on for
    parts, and its config.json is `model_config`.

    Raises:
        ModelNotFound: there is no such file, or the directory has no tokenizer file.
        WeightsInvalid: the directory has no weights, or a file is damaged.
        ConfigInvalid: the GGUF file lacks sizes of the model.
    """
    digests = digests or FileDigests()
    if is_gguf(path):
        config = model_config(path)
        described = NamedFile(_CONFIG[0], len(config), f"sha256:{hashlib.sha256(config).hexdigest()}")
        return BaseManifest(
            config=(described,), tokenizer_cid=tokenizer_cid(path), weights=tuple(_gguf_files(path, digests))
        )
    return BaseManifest(
        config=_described(path, _CONFIG, digests),
        tokenizer_cid=tokenizer_cid(path),
        weights=tuple(_part(file, digests) for file in weight_files(path)),
    )


def _gguf_files(path: Path, digests: FileDigests) -> Iterator[NamedFile]:
    paths = GgufFile.open(path).paths
    for number, part in enumerate(paths, 1):
        name = _GGUF if len(paths) == 1 else str(PartName(_GGUF.removesuffix(".gguf"), number, len(paths)))
        yield NamedFile(name, part.stat().st_size, _checked_digest(part, digests))


def base_cid(path: Path) -> str:
    """The identifier of the base's manifest. Raises as `base_manifest` does."""
    return base_manifest(path).cid


def hash_ahead(path: Path) -> None:
    """Start a thread that hashes the files of a model. `base_cid` waits for it, and raises its errors."""

    def work() -> None:
        with suppress(TargetError, OSError):
            base_cid(path)

    threading.Thread(target=work, name="hashing", daemon=True).start()


@contextmanager
def one_version(path: Path, error: type[TargetError] = WeightsInvalid) -> Iterator[Callable[[], None]]:
    """A block that hashes and reads the files of a model or an adapter, also maps, which are read when they are used.

    Raises `error` at its end if a file was modified or replaced since its beginning: the identifier could be of other
    bytes than those that were read. Yields a function that checks it earlier.
    """
    before = _stamps(path)

    def check() -> None:
        if changed := before ^ _stamps(path):
            names = ", ".join(sorted({file.name for file, *_ in changed}))
            raise error(f"{path}: {names}: changed while they were loaded; start again when all files are complete")

    yield check
    check()


def _stamps(path: Path) -> frozenset[Stamp]:
    if is_gguf(path):
        return frozenset(map(file_stamp, sibling_paths(path)))
    read = {*_CONFIG, *TOKENIZER_FILES, "adapter_config.json"}
    return frozenset(file_stamp(file) for file in path.glob("*") if file.name in read or ".safetensors" in file.name)


def model_config(path: Path) -> bytes:
    """The manifest's config.json, with which a registry compares heads: the directory's, or a GGUF file's sizes."""
    if not is_gguf(path):
        return (path / _CONFIG[0]).read_bytes()
    return canonical(gguf_sizes(GgufFile.open(path).metadata))


def tokenizer_cid(path: Path) -> str:
    """Digest of the tokenizer's files, or of a GGUF file's `tokenizer.` metadata, so that files of one family can draft
    for each other.

    Raises:
        ModelNotFound: there is no such file, or the directory has no tokenizer file.
        WeightsInvalid: the GGUF file is damaged.
    """
    if is_gguf(path):
        digest = GgufFile.open(path).metadata.digest("tokenizer.")
        return cid_of_json({"type": "kolm.tokenizer.v1", "metadata": digest})
    files = [part.to_document() for part in _described(path, TOKENIZER_FILES, FileDigests())]
    if not files:
        raise ModelNotFound(f"{path}: no tokenizer files; expected tokenizer.json")
    return cid_of_json({"type": "kolm.tokenizer.v1", "files": files})


def _described(directory: Path, names: tuple[str, ...], digests: FileDigests) -> tuple[NamedFile, ...]:
    return tuple(_part(directory / name, digests) for name in names if (directory / name).exists())


def _part(path: Path, digests: FileDigests) -> NamedFile:
    return NamedFile(path.name, path.stat().st_size, _checked_digest(path, digests))


def _checked_digest(path: Path, digests: FileDigests) -> str:
    """The digest. huggingface_hub and Ollama name a file by its published digest: raises WeightsInvalid if the file's
    digest is another one.
    """
    digest, blob = digests.digest(path), path.resolve()
    published = _PUBLISHED.fullmatch(blob.name) if blob.parent.name == "blobs" else None
    if published and digest != f"sha256:{published[1]}":
        raise WeightsInvalid(f"{path}: damaged, its digest is not the published one; pull the model again")
    return digest
