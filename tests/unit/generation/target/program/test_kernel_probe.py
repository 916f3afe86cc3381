"""The probe of single kernels sees a kernel whose rows depend on their number."""

from __future__ import annotations

from typing import Any

import pytest

from services.generation.target.cpu import CpuTarget
from services.generation.target.kernels.records import PASS
from services.generation.target.program.team import Team


def test_kernels_pass_at_every_size_and_the_cache_is_given_back(target: CpuTarget) -> None:
    report = target.probe_kernels()
    assert not report.failures
    assert report.compared > 1000
    assert target.blocks.used == 0


@pytest.mark.parametrize("rows", [17, 256])
def test_a_kernel_that_is_wrong_for_one_number_of_rows_is_found(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    honest = Team.run

    def tampered(self: Team, words: Any, threads: int, *, wait: bool = False) -> None:
        if words[PASS.index("rows")] == rows:
            words[PASS.index("rows")] -= 1
        honest(self, words, threads, wait=wait)

    monkeypatch.setattr(Team, "run", tampered)
    report = target.probe_kernels()
    assert report.failures
    assert all(f" {rows} rows" in failure for failure in report.failures)
