"""A probe that passed is not made again for the same model and code; one that failed is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.generation.target import probe
from services.generation.target.cpu import CpuTarget
from services.generation.target.probe import KeptProbes, ProbeReport, measure_profile
from tests.fakes.tampered_targets import WidthDependentTarget


def test_the_second_start_takes_what_the_first_has_found(
    target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptProbes(tmp_path)
    first = measure_profile(target, kept)
    monkeypatch.setattr(probe, "probe", lambda target: pytest.fail("probed again"))
    assert measure_profile(target, kept) == first


def test_other_code_is_probed_again(target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptProbes(tmp_path)
    kept.keep(target, ProbeReport(3, (), "sha256:00"))
    assert kept.find(target) is not None
    monkeypatch.setattr(probe, "code_version", lambda: "another")
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


@pytest.mark.parametrize("change", [{"compared": 4}, {"fingerprint": "sha256:01"}, {"digest": ""}])
def test_what_was_changed_is_not_believed(target: CpuTarget, tmp_path: Path, change: dict[str, object]) -> None:
    kept = KeptProbes(tmp_path)
    kept.keep(target, ProbeReport(3, (), "sha256:00"))
    assert kept.find(target) == ProbeReport(3, (), "sha256:00")
    (path,) = tmp_path.glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert kept.find(target) is None


def test_a_result_under_another_targets_name_is_not_believed(
    target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptProbes(tmp_path)
    with monkeypatch.context() as other:
        other.setattr(probe, "code_version", lambda: "another")
        kept.keep(target, ProbeReport(3, (), "sha256:00"))
    (path,) = tmp_path.glob("*.json")
    path.rename(kept._path(target))
    assert kept.find(target) is None
