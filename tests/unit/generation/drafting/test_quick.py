"""Compiled functions of drafting are kept per version of all that they are compiled from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from numba import config

from services.generation.drafting import quick as module
from services.generation.drafting.quick import quick


def test_every_file_with_such_a_function_counts() -> None:
    package = Path(module.__file__).parent
    marks = re.compile(r"^@quick|^def quick\(", re.MULTILINE)
    marked = {str(file.relative_to(package)) for file in package.rglob("*.py") if marks.search(file.read_text())}
    assert marked <= set(module._SOURCES)
    assert all((package / source).exists() for source in module._SOURCES)


def test_they_lie_beside_the_kernels_and_numba_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    before = config.CACHE_DIR

    @quick
    def twice(value: int) -> int:
        return 2 * value

    assert twice(4) == 8
    assert before == config.CACHE_DIR
    assert [folder.name for folder in tmp_path.iterdir()] == [f"drafting-{module._version()}"]
