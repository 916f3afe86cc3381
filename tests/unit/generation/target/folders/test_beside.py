"""Heads, stores and adapters beside a model are found, and those of other models are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.generation.target import beside
from services.generation.target.beside import adapters_beside, head_beside, store_beside


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
    monkeypatch.setattr(beside, "packaged", lambda: {"smollm2": base})
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
