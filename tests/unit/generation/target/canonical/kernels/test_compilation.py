"""Kernels are compiled once for a machine and a version, and whether they have been can be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.generation.target.canonical.kernels import cache_folder, compilation


def test_whether_an_earlier_start_has_compiled_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    assert not compilation.kernels_are_compiled()
    compilation.compile_ahead(["rows"])
    assert compilation.kernels_are_compiled()
    monkeypatch.setattr(compilation, "version", lambda: "another")
    assert not compilation.kernels_are_compiled()


def test_modules_that_cannot_be_written_beside_use_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KOLM_KERNEL_CACHE", raising=False)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder.cache_folder() == tmp_path / "kolm" / "kernels"
