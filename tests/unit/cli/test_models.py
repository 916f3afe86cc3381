"""Names of models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.generation.target.model_path import model_path
from tests.fakes.tiny_gguf import make_tiny_gguf
from tests.fakes.tiny_model import make_tiny_model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOLM_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "models"


def kolm(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["models", *words])
    return result.exit_code, result.stdout + result.stderr


def test_a_model_is_imported_and_found_by_its_name(folder: Path, tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", layers=1)
    assert kolm("import", str(source), "--name", "mine")[0] == 0
    assert model_path("mine") == folder / "mine"
    listed = json.loads(kolm("list", "--json")[1])
    (mine,) = (each for each in listed if each["name"] == "mine")
    assert (mine["from"], mine["path"], mine["family"]) == ("imported", str(folder / "mine"), "llama")
    assert mine["size"] == (folder / "mine" / "model.safetensors").stat().st_size
    assert [each["from"] for each in listed if each["name"] == "smollm2"] == ["package"]
    assert not [each for each in folder.iterdir() if each.name.startswith(".")]


def test_a_model_says_what_it_is(folder: Path, tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", layers=2)
    shown = json.loads(kolm("list", str(source), "--context-length", "64", "--json")[1])
    assert (shown["family"], shown["layers"], shown["context_length"], shown["heads"]) == ("llama", 2, 64, None)
    assert shown["base_cid"].startswith("cidv1:sha256:")
    assert shown["arithmetic"] == "kolm-arithmetic/1"
    assert shown["parameters"] == sum(shown["storages"].values()) > 0
    assert "of cache for 64 tokens" in kolm("list", str(source), "--context-length", "64")[1]


@pytest.mark.parametrize("name", ["../mine", "", "a b", "smollm2", ".hidden"])
def test_a_name_that_is_none_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    code, said = kolm("import", str(make_tiny_model(tmp_path / "source", layers=1)), "--name", name)
    assert (code, "cannot be a model's" in said) == (2, True)


def test_a_name_that_is_taken_is_refused_and_nothing_changes(folder: Path, tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", layers=1)
    assert kolm("import", str(source), "--name", "mine")[0] == 0
    code, said = kolm("import", str(make_tiny_model(tmp_path / "other", layers=1, seed=2)), "--name", "mine")
    assert (code, "there is a model mine" in said) == (2, True)
    assert (folder / "mine" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def test_what_is_no_model_is_refused_by_its_file_and_copied_nowhere(folder: Path, tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", layers=1)
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    code, said = kolm("import", str(source), "--name", "mine")
    assert (code, "model.safetensors" in said) == (2, True)
    assert not folder.exists()


@pytest.mark.parametrize("command", ["list", "import"])
def test_a_refusal_names_the_path_once(folder: Path, tmp_path: Path, command: str) -> None:
    (other := tmp_path / "other").mkdir()
    (other / "config.json").write_text('{"architectures": ["Other"], "model_type": "other"}')
    cut = make_tiny_gguf(tmp_path / "cut.gguf")
    cut.write_bytes(cut.read_bytes()[:-5000])
    for path in (other, cut):
        code, said = kolm(command, str(path), *(("--name", "mine") if command == "import" else ()))
        assert (code, said.count(str(path))) == (2, 1), said
