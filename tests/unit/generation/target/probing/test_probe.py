"""The probe passes what is canonical and catches what is not; the profile names what bits depend on."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from services.generation.target.calibration import time_passes
from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.probe import measure_profile, probe
from tests.fakes.tampered_targets import WidthDependentTarget
from tests.fakes.tiny_model import make_tiny_model


def test_the_cpu_target_passes_and_leaves_the_cache_free(target: CpuTarget) -> None:
    report = probe(target)
    assert report.passed, report.failures
    assert report.compared > 30
    assert target.blocks.used == 0


def test_a_target_whose_bits_depend_on_the_width_fails(target: CpuTarget) -> None:
    tampered = WidthDependentTarget(target)
    tampered.deviating = True
    report = probe(tampered)
    assert not report.passed
    assert "logits differ" in report.failures[0]
    assert target.blocks.used == 0


def test_a_target_that_does_not_move_slots_fails(target: CpuTarget) -> None:
    class Forgetful(WidthDependentTarget):
        def move(self, sources: list[int], targets: list[int]) -> None:
            pass

    report = probe(Forgetful(target))
    assert [failure.split(" at ")[0] for failure in report.failures] == ["the row after a moved path"] * 2


def test_a_context_shorter_than_the_probe_is_probed_too(tmp_path: Path) -> None:
    assert probe(load_target(make_tiny_model(tmp_path, context=40))).passed


def test_a_profile_is_the_same_every_time_and_another_for_another_base(target: CpuTarget, tmp_path: Path) -> None:
    first, second = measure_profile(target), measure_profile(target)
    other = measure_profile(load_target(make_tiny_model(tmp_path, seed=1)))
    assert first.passed
    assert first.cid == second.cid
    assert first.cid != other.cid
    differing = [key for key, value in first.document.items() if other.document[key] != value]
    assert differing == ["fingerprint"]


def test_passes_are_timed_over_several_widths(target: CpuTarget) -> None:
    ticks = iter(range(10**6))
    samples = time_passes(target, clock=lambda: float(next(ticks)))
    assert [rows for rows, _ in samples] == [1, 2, 4, 8, 16, 32]
    assert {seconds for _, seconds in samples} == {1.0}
    assert target.blocks.used == 0


@pytest.mark.parametrize(("tick", "rounds"), [(0.001, 12), (1.0, 5)])
def test_passes_that_take_long_are_timed_fewer_times(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch, tick: float, rounds: int
) -> None:
    ticks, passes, forward = count(step=tick), [], target.forward
    monkeypatch.setattr(target, "forward", lambda *asked: passes.append(asked) or forward(*asked))
    time_passes(target, clock=lambda: next(ticks))
    assert len(passes) == 6 * rounds
