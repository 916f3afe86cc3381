"""Compiled functions of drafting are kept per version of all that they are compiled from."""

from __future__ import annotations

from pathlib import Path

import pytest
from numba import config

from services.generation.drafting import relaxed as module
from services.generation.drafting.relaxed import relaxed


def test_they_lie_beside_the_kernels_and_numba_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOLM_KERNEL_CACHE", str(tmp_path))
    before = config.CACHE_DIR

    @relaxed
    def twice(value: int) -> int:
        return 2 * value

    assert twice(4) == 8
    assert before == config.CACHE_DIR
    assert [folder.name for folder in tmp_path.iterdir()] == [f"drafting-{module._version()}"]
