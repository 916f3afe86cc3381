"""Models on this machine: in the cache of huggingface_hub, and in the folders of Ollama and LM Studio.

The folders are never written to. A file in the cache or in Ollama's folder is named by its digest, which `identity.py`
checks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from services.generation.target.errors import ModelNotFound
from services.generation.target.files.part_names import PartName
from services.generation.target.naming.hub_names import SHORT, HubName, choose, files_of, is_model_file, quantisation

_OLLAMA = ("~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models")
_LM_STUDIO = ("~/.lmstudio/models", "~/.cache/lm-studio/models")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_BYTES = 1 << 20  # of a manifest


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A name for `--model`. `path` is None if the package is not installed or the model not fetched yet."""

    name: str
    origin: str  # package, imported, hub, ollama or lmstudio
    path: Path | None


def hub_cache() -> Path:
    """The cache of huggingface_hub, by its environment variables and without importing it."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    return Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()


def repo_folder(repo: str) -> Path:
    """The place of a repository in the cache."""
    return hub_cache() / ("models--" + repo.replace("/", "--"))


def in_hub_cache(name: HubName) -> Path | None:
    """The file or folder that was pulled under this name, or None. Raises ModelNotFound if several files match."""
    snapshot = repo_folder(name.repo) / "snapshots" / known_commit(name)
    sizes = {file: (snapshot / file).stat().st_size for file in _files(snapshot)}
    if not sizes or (name.wanted and not any(_is_meant(file, name.wanted) for file in sizes)):
        return None
    if not any(is_model_file(file) for file in sizes):
        return snapshot if is_whole(snapshot) else None
    if not any(_is_meant(file, name.wanted) for file in _whole_models(sizes)):  # a part is not fetched yet
        return None
    file = choose(sizes, name, memory=None)
    return snapshot / file if file else snapshot


def known_commit(name: HubName) -> str:
    """The commit that the revision meant when it was last fetched, or the revision itself."""
    return _commit(repo_folder(name.repo) / "refs" / name.revision) or name.revision


def _commit(ref: Path) -> str:
    """The commit in a ref of the cache; empty if the ref is missing, unreadable or damaged."""
    try:
        return ref.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _is_meant(file: str, wanted: str) -> bool:
    return wanted in ("", file, file.rpartition("/")[2]) or quantisation(file) == wanted.upper()


def _whole_models(files: Collection[str]) -> list[str]:
    """GGUF files of complete models. A model in parts is named by its first part."""
    return [file for file in files if is_model_file(file) and all(part in files for part in files_of(file))]


def is_whole(snapshot: Path) -> bool:
    """Whether a folder has configuration, tokenizer and all weights: other programs fetch only some of them."""
    try:
        index = json.loads((snapshot / "model.safetensors.index.json").read_bytes())
        weights = {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        weights = {"model.safetensors"}
    tokenizer = any(os.path.isfile(snapshot / name) for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    return tokenizer and all(os.path.isfile(snapshot / name) for name in ("config.json", *weights))


def _files(folder: Path) -> list[str]:
    """All files below a folder, by relative path. Broken links and unreadable folders are left out."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if os.path.isfile(path))


def _of_hub() -> Iterator[NamedModel]:
    for folder in sorted(hub_cache().glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        refs = {_commit(folder / "refs" / ref): ref for ref in reversed(_files(folder / "refs"))}
        for snapshot in sorted((folder / "snapshots").glob("*")):
            name = HubName(repo, refs.get(snapshot.name, snapshot.name))
            models = _whole_models(_files(snapshot))
            for file in models:
                yield NamedModel(str(HubName(repo, name.revision, quantisation(file) or file)), "hub", snapshot / file)
            if not models and is_whole(snapshot):
                yield NamedModel(str(name), "hub", snapshot)


def _existing(variable: str, usual: Iterable[str]) -> list[Path]:
    named = os.environ.get(variable)
    places = [Path(place).expanduser() for place in ([named] if named else usual)]
    return [place for place in places if place.is_dir()]


def _of_ollama() -> Iterator[NamedModel]:
    """Ollama's models without adapters. A manifest is JSON with the digests of layers."""
    for place in _existing("OLLAMA_MODELS", _OLLAMA):
        for named in _files(place / "manifests"):
            if (blob := _ollama_blob(place, named)) is not None:
                path, _, tag = named.removeprefix("registry.ollama.ai/").removeprefix("library/").rpartition("/")
                yield NamedModel(f"ollama:{path}:{tag}", "ollama", blob)


def _ollama_blob(place: Path, manifest: str) -> Path | None:
    try:
        with (place / "manifests" / manifest).open("rb") as file:
            layers = json.loads(file.read(_MOST_BYTES))["layers"]
        kinds = {str(layer["mediaType"]).rpartition(".")[2]: layer for layer in layers}
        digest, size = str(kinds["model"]["digest"]), kinds["model"]["size"]
        if "adapter" in kinds or not _DIGEST.fullmatch(digest):
            return None
        blob = place / "blobs" / digest.replace(":", "-")
        return blob if blob.is_file() and blob.stat().st_size == size else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _of_lm_studio() -> Iterator[NamedModel]:
    """Models in publisher/repository/file. The file is left out of the name if its repository has no other."""
    for place in _existing("LMSTUDIO_MODELS", _LM_STUDIO):
        for repository in sorted(place.glob("*/*")):
            models = _whole_models(_files(repository))
            for file in models:
                which = f":{quantisation(file) or file}" if len(models) > 1 else ""
                name = f"{repository.parent.name}/{repository.name}{which}"
                yield NamedModel(f"lmstudio:{name}", "lmstudio", repository / file)


def found_here() -> list[NamedModel]:
    """All models on this machine. Unreadable folders are skipped."""
    found: list[NamedModel] = []
    for source in (_of_hub, _of_ollama, _of_lm_studio):
        try:
            found += source()
        except OSError:  # a folder of another user
            continue
    return found


def short_names() -> dict[str, Path | None]:
    """The short names, with the path of their model if it is on this machine."""
    found: dict[str, Path | None] = {}
    for name in SHORT:
        try:
            found[name] = here(name)
        except ModelNotFound:  # several files of its repository match
            found[name] = None
    return found


def here(named: str) -> Path | None:
    """The path of the model with this name, or None if it is not on this machine.

    A short name is searched in the cache of the hub, then in Ollama's folder. Raises ModelNotFound for a malformed name
    and if several files match.
    """
    if (name := HubName.of(named)) is not None and (path := in_hub_cache(name)) is not None:
        return path
    if named in SHORT:
        named = f"ollama:{named}"
    if not named.startswith(("ollama:", "lmstudio:")):
        return None
    meant = named if named.startswith("lmstudio:") or named.count(":") > 1 else f"{named}:latest"
    return next((each.path for each in found_here() if each.name.lower() == meant.lower()), None)


def to_pull(named: str) -> HubName | None:
    """The name of a model on a hub that is not on this machine, or None, also for a malformed name."""
    try:
        return HubName.of(named) if here(named) is None else None
    except ModelNotFound:
        return None


def missing(named: str) -> ModelNotFound | None:
    """The error for a hub's, Ollama's or LM Studio's model that is not on this machine; None for other names."""
    if named.startswith(("ollama:", "lmstudio:")):
        return ModelNotFound(f"{named}: not in the folders of Ollama and LM Studio; see `kolm models list`")
    if HubName.of(named) is None:
        return None
    return ModelNotFound(f"{named}: not on this machine; `kolm models pull {named}` fetches it")


def published_name(path: Path) -> str | None:
    """The published name of a file or folder that one of these folders stores under a digest; None elsewhere."""
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.rpartition("--")[2]
    if path.resolve().parent.name != "blobs":
        return None
    if path.is_symlink():
        part = PartName.of(path.name)
        return part.stem if part else path.name.removesuffix(".gguf")
    found = (each.name.removeprefix("ollama:") for each in _of_ollama() if each.path == path)
    return next(found, None)
