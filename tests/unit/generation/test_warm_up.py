"""At a first start a process beside it compiles numba's code, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.generation.engine.numba_cache import leave_mark
from services.generation.warm_up import compile_beside


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_nothing_is_started_where_an_earlier_start_has_left_its_mark() -> None:
    leave_mark("sampling")
    assert compile_beside("sampling", "text") is None


def test_nothing_is_started_where_nothing_can_be_kept(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    assert compile_beside("sampling", "text") is None
    leave_mark("sampling")


def test_the_process_ends_with_the_one_that_started_it(folder: Path) -> None:
    process = compile_beside("sampling", "text")
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 1
    assert not list(folder.glob("sampling-*"))
