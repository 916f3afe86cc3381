"""Functions that numba compiles are kept per version of all that they are compiled from, and counted in the log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba import config

from services.generation.engine.numba_cache import compiled, inlined, relaxed


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
