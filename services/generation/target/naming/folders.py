"""Models that are on this machine: in the cache of huggingface_hub, in Ollama's and in LM Studio's folder.

All are read and never written to. A file in the cache or in Ollama's folder lies under its own digest, against which
`identity.py` holds it.
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
from services.generation.target.naming.catalogue import (
    SHORT,
    HubName,
    choose,
    files_of,
    is_model_file,
    quantisation,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A model, by the name that `--model` takes for it."""

    name: str
    origin: str  # hub, ollama or lmstudio
    path: Path


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
    """The file or folder that was pulled under this name. Raises ModelNotFound where several may be meant."""
    folder = repo_folder(name.repo)
    try:
        commit = (folder / "refs" / name.revision).read_text().strip()
    except OSError:
        commit = name.revision
    snapshot = folder / "snapshots" / commit
    sizes = {file: (snapshot / file).stat().st_size for file in _files(snapshot)}
    if not sizes or (name.wanted and not any(_is_meant(file, name.wanted) for file in sizes)):
        return None
    if not any(is_model_file(file) for file in sizes):
        return snapshot if is_whole(snapshot) else None
    if not any(_is_meant(file, name.wanted) for file in _whole_models(sizes)):  # a part is still to be fetched
        return None
    file = choose(sizes, name, memory=None)
    return snapshot / file if file else snapshot


def _is_meant(file: str, wanted: str) -> bool:
    return wanted in ("", file, file.rpartition("/")[2]) or quantisation(file) == wanted.upper()


def _whole_models(files: Collection[str]) -> list[str]:
    """GGUF files of models that are here with all their parts; a model in parts is named by its first."""
    return [file for file in files if is_model_file(file) and all(part in files for part in files_of(file))]


def is_whole(snapshot: Path) -> bool:
    """Whether a folder has configuration, tokenizer and all weights: other programs fetch some of them alone."""
    try:
        index = json.loads((snapshot / "model.safetensors.index.json").read_bytes())
        weights = {str(name) for name in index["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        weights = {"model.safetensors"}
    tokenizer = any((snapshot / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    return tokenizer and all((snapshot / name).is_file() for name in ("config.json", *weights))


def _files(folder: Path) -> list[str]:
    """All below a folder, by their paths in it; links that lead nowhere are left out."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _of_hub() -> Iterator[Found]:
    for folder in sorted(hub_cache().glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        refs = {(folder / "refs" / ref).read_text().strip(): ref for ref in reversed(_files(folder / "refs"))}
        for snapshot in sorted((folder / "snapshots").glob("*")):
            name = HubName(repo, refs.get(snapshot.name, snapshot.name))
            models = _whole_models(_files(snapshot))
            for file in models:
                yield Found(str(HubName(repo, name.revision, quantisation(file) or file)), "hub", snapshot / file)
            if not models and is_whole(snapshot):
                yield Found(str(name), "hub", snapshot)


_OLLAMA = ("~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models")
_LM_STUDIO = ("~/.lmstudio/models", "~/.cache/lm-studio/models")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_BYTES = 1 << 20  # of a manifest


def _existing(variable: str, usual: Iterable[str]) -> list[Path]:
    named = os.environ.get(variable)
    places = [Path(place).expanduser() for place in ([named] if named else usual)]
    return [place for place in places if place.is_dir()]


def _of_ollama() -> Iterator[Found]:
    """Models without adapters or projectors of their own; a manifest is JSON with the digests of layers."""
    for place in _existing("OLLAMA_MODELS", _OLLAMA):
        for named in _files(place / "manifests"):
            if (blob := _ollama_blob(place, named)) is not None:
                path, _, tag = named.removeprefix("registry.ollama.ai/").removeprefix("library/").rpartition("/")
                yield Found(f"ollama:{path}:{tag}", "ollama", blob)


def _ollama_blob(place: Path, manifest: str) -> Path | None:
    try:
        with (place / "manifests" / manifest).open("rb") as file:
            layers = json.loads(file.read(_MOST_BYTES))["layers"]
        kinds = {str(layer["mediaType"]).rpartition(".")[2]: layer for layer in layers}
        digest, size = str(kinds["model"]["digest"]), kinds["model"]["size"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if "adapter" in kinds or not _DIGEST.fullmatch(digest):
        return None
    blob = place / "blobs" / digest.replace(":", "-")
    return blob if blob.is_file() and blob.stat().st_size == size else None


def _of_lm_studio() -> Iterator[Found]:
    """Files as publisher/repository/file; a repository with one file is named without it."""
    for place in _existing("LMSTUDIO_MODELS", _LM_STUDIO):
        for repository in sorted(place.glob("*/*")):
            models = _whole_models(_files(repository))
            for file in models:
                which = f":{quantisation(file) or file}" if len(models) > 1 else ""
                name = f"{repository.parent.name}/{repository.name}{which}"
                yield Found(f"lmstudio:{name}", "lmstudio", repository / file)


def found_here() -> list[Found]:
    """All of them, by their names."""
    found: list[Found] = []
    for source in (_of_hub, _of_ollama, _of_lm_studio):
        try:
            found += source()
        except OSError:  # somebody else's folder, which we may not read
            continue
    return found


def short_names() -> dict[str, Path | None]:
    """The short names, each with its model where one is here."""
    found: dict[str, Path | None] = {}
    for name in SHORT:
        try:
            found[name] = here(name)
        except ModelNotFound:  # several files of its repository are
            found[name] = None
    return found


def here(named: str) -> Path | None:
    """The model of this name, if it is on this machine; None for other names, too.

    A short name is looked for in the cache of the hub, then in Ollama's folder. Raises ModelNotFound for a name that
    is malformed, or may mean several files.
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
    """The name, if it is one of a model on a hub that is not here; None for every other, also for a wrong one."""
    try:
        return HubName.of(named) if here(named) is None else None
    except ModelNotFound:
        return None


def missing(named: str) -> ModelNotFound | None:
    """The error for a name of one of these kinds, of a model that is not here; None for other names."""
    if named.startswith(("ollama:", "lmstudio:")):
        return ModelNotFound(f"{named}: not in the folders of Ollama and LM Studio; `kolm models list` shows what is")
    if HubName.of(named) is None:
        return None
    return ModelNotFound(f"{named}: not on this machine; `kolm models pull {named}` brings it")


def published_name(path: Path) -> str | None:
    """The name of what lies in one of these folders under a digest; None elsewhere."""
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.rpartition("--")[2]
    if path.resolve().parent.name != "blobs":
        return None
    if path.is_symlink():
        part = PartName.of(path.name)
        return part.stem if part else path.name.removesuffix(".gguf")
    found = (each.name.removeprefix("ollama:") for each in _of_ollama() if each.path == path)
    return next(found, None)
