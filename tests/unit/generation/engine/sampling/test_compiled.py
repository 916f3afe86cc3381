"""Compiled functions of the engine are kept per version of all that they are compiled from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from numba import config

from services.generation.engine.sampling import compiled as module
from services.generation.engine.sampling.compiled import compiled


def test_every_file_with_a_compiled_function_counts() -> None:
    package = Path(module.__file__).parent
    marks = re.compile(r"^@(compiled|inlined)|^def compiled\(", re.MULTILINE)
    assert {file.name for file in package.glob("*.py") if marks.search(file.read_text())} == set(module._SOURCES)


def test_they_lie_in_a_folder_of_their_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    before = config.CACHE_DIR

    @compiled
    def twice(value: int) -> int:
        return 2 * value

    assert twice(4) == 8
    assert before == config.CACHE_DIR
    (folder,) = tmp_path.iterdir()
    assert folder == tmp_path / f"sampling-{module._version()}"
    assert any(folder.rglob("*.nbi"))
