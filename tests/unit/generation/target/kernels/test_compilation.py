"""Kernels are compiled once for a machine and a version, and whether they have been can be asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.generation.target.errors import TargetError
from services.generation.target.kernels import compilation


def test_whether_an_earlier_start_has_compiled_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    assert not compilation.kernels_are_compiled()
    compilation.compile_ahead(["rows"])
    assert compilation.kernels_are_compiled()
    monkeypatch.setattr(compilation, "version", lambda: "another")
    assert not compilation.kernels_are_compiled()


@pytest.mark.parametrize("change", ["a bit of the code", "the end", "another module's file", "no digest"])
def test_object_code_that_is_not_what_was_compiled_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    compilation.compile_ahead(["rows"])
    (path,) = tmp_path.glob("rows-*.o")
    good = path.read_bytes()
    if change == "a bit of the code":
        path.write_bytes(good[:2000] + bytes([good[2000] ^ 1]) + good[2001:])
    elif change == "the end":
        path.write_bytes(good[:-100])
    elif change == "no digest":
        path.write_bytes(good.split(b"\n", 1)[1])
    else:
        other = path.with_name(path.name.replace("rows-", "cache_float32-"))
        path.rename(other)
        path = other
    assert not compilation.kernels_are_compiled()
    compilation.compile_ahead([path.name.partition("-")[0]])
    assert path.read_bytes() != good if change == "another module's file" else path.read_bytes() == good
    assert compilation._kept(path)


def test_modules_that_cannot_be_written_beside_use_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KOLM_KERNEL_CACHE", raising=False)
    monkeypatch.setattr("os.access", lambda path, mode: tmp_path in Path(path).parents)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compilation.cache_folder() == tmp_path / "kolm" / "kernels"


@pytest.mark.parametrize("home", ["a file", "none"])
def test_where_nothing_can_be_written_code_is_kept_for_one_start(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "home").touch()
    for name in ("KOLM_KERNEL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")  # so that what is set here is undone
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home" if home == "a file" else _homeless())
    folder = compilation.cache_folder()
    assert folder == compilation.cache_folder() == Path(os.environ["KOLM_KERNEL_CACHE"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "every start compiles anew; set KOLM_KERNEL_CACHE" in caplog.text
    folder.rmdir()


def test_a_folder_that_was_named_and_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path / "taken"))
    with pytest.raises(TargetError, match=f"KOLM_KERNEL_CACHE: cannot write in {tmp_path}/taken"):
        compilation.compile_ahead(["rows"])


def _homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")
