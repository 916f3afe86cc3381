"""Compiled kernels are kept per version of what they were compiled from."""

from __future__ import annotations

from pathlib import Path

import pytest
from numba import config

from services.generation.target import kernel_cache
from services.generation.target.attention import attend
from services.generation.target.kernels import kernel


def test_a_folder_of_their_own_and_numba_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))

    @kernel
    def twice(value: int) -> int:
        return 2 * value

    assert twice(4) == 8
    assert str(tmp_path) == config.CACHE_DIR
    assert [folder.name for folder in tmp_path.iterdir()] == [kernel_cache._folder().name]


def test_whether_an_earlier_start_has_compiled_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    folder = tmp_path / kernel_cache._folder().name / "target"
    folder.mkdir(parents=True)
    (folder / "products.product_share-149.py311.nbi").touch()  # compiled by an import, as callbacks are
    assert not kernel_cache.kernels_are_compiled()
    (folder / f"{attend._cache._impl.filename_base}.nbi").touch()
    assert kernel_cache.kernels_are_compiled()


def test_another_version_of_a_source_is_another_folder(tmp_path: Path) -> None:
    versions = set()
    for number, text in enumerate(("one", "two")):
        (package := tmp_path / str(number)).mkdir()
        (package / "kernels.py").write_text(text)
        versions.add(kernel_cache.version_of(package, ("kernels.py",)))
    assert len(versions) == 2


def test_modules_that_cannot_be_written_beside_use_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache.os, "access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernel_cache._root("") == tmp_path / "kolm"
    assert kernel_cache._root("/elsewhere") == Path("/elsewhere")
