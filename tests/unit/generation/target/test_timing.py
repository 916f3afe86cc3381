"""Timings of passes that are kept between starts."""

import json
from pathlib import Path

import pytest

from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.timing import KeptTimings, Timing

TIMING = Timing(((1, 0.1 + 0.2), (2, 0.5)), 1e-9, 0.0)


@pytest.fixture(scope="module")
def target(model: Path) -> CpuTarget:
    return load_target(model, cache_tokens=4 * 64)


def test_a_later_start_finds_the_timing_of_an_earlier_one(target: CpuTarget, tmp_path: Path) -> None:
    KeptTimings(tmp_path).keep(target, TIMING)
    assert KeptTimings(tmp_path).find(target) == TIMING


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"passes": [[1, 0.5]], "key": 0.0, "seen": 0.0, "digest": ""}']
)
def test_a_damaged_file_is_timed_again(target: CpuTarget, tmp_path: Path, text: str) -> None:
    kept = KeptTimings(tmp_path)
    kept.keep(target, TIMING)
    (path,) = tmp_path.glob("*.json")
    path.write_text(text)
    assert kept.find(target) is None


def test_a_changed_value_is_timed_again(target: CpuTarget, tmp_path: Path) -> None:
    kept = KeptTimings(tmp_path)
    kept.keep(target, TIMING)
    (path,) = tmp_path.glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"key": 2e-9}))
    assert kept.find(target) is None
