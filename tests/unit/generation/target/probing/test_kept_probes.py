"""A probe that passed is not made again for the same model and code; one that failed is."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.generation.target.cpu import CpuTarget
from services.generation.target.probing import kept_probes, profile
from services.generation.target.probing.kept_probes import KeptProbes
from services.generation.target.probing.probe import ProbeReport
from services.generation.target.probing.profile import measure_profile
from tests.fakes.tampered_targets import WidthDependentTarget


def test_the_second_start_takes_what_the_first_has_found(
    target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptProbes(tmp_path)
    first = measure_profile(target, kept)
    monkeypatch.setattr(profile, "probe", lambda target: pytest.fail("probed again"))
    assert measure_profile(target, kept) == first


def test_other_code_is_probed_again(target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptProbes(tmp_path)
    kept.keep(target, ProbeReport(3, (), "sha256:00"))
    assert kept.find(target) is not None
    monkeypatch.setattr(kept_probes, "code_version", lambda: "another")
    assert kept.find(target) is None


def test_what_failed_and_what_is_damaged_is_not_kept(target: CpuTarget, tmp_path: Path) -> None:
    kept = KeptProbes(tmp_path)
    tampered = WidthDependentTarget(target)
    tampered.deviating = True
    assert not measure_profile(tampered, kept).passed
    assert not list(tmp_path.glob("*.json"))
    kept.keep(target, ProbeReport(3, (), "sha256:00"))
    next(tmp_path.glob("*.json")).write_bytes(b'{"compared": ')
    assert kept.find(target) is None
