"""Functions that numba compiles are kept per version of all that they are compiled from, and counted in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba import config, njit

from services.generation.engine import numba_cache
from services.generation.engine.numba_cache import compile_log, compiled, inlined, relaxed


@pytest.mark.parametrize(("how", "name"), [(compiled, "sampling"), (inlined, "sampling"), (relaxed, "drafting")])
def test_they_lie_in_a_folder_of_their_version_and_numba_is_left_as_it_was(
    how: Callable[[Any], Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    before = config.CACHE_DIR

    @how
    def twice(value: int) -> int:
        return 2 * value

    assert twice(4) == 8
    assert before == config.CACHE_DIR
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith(f"{name}-")
    assert any(folder.rglob("*.nbi"))


def test_every_file_with_a_compiled_function_counts() -> None:
    package = numba_cache._GENERATION
    marked = re.compile(r"^@(compiled|inlined|relaxed)", re.MULTILINE)
    files = {path for path in package.rglob("*.py") if marked.search(path.read_text())}
    counted = {path for pattern in numba_cache._DRAFTING for path in package.glob(pattern)}
    assert files <= counted
    exact = {path for path in files if re.search(r"^@(compiled|inlined)", path.read_text(), re.MULTILINE)}
    assert exact <= {path for pattern in numba_cache._SAMPLING for path in package.glob(pattern)}


def test_functions_that_are_compiled_are_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    @njit
    def plus_one(x: int) -> int:
        return x + 1

    with caplog.at_level(logging.INFO), compile_log():
        assert plus_one(1) == 2
        assert plus_one(2) == 3
    assert plus_one(1.0) == 2.0
    assert [record.getMessage() for record in caplog.records if "plus_one" in record.getMessage()] == [
        "compiling what samples and drafts: function 1, plus_one"
    ]
