"""Timings of passes that are kept between starts."""

import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from services.generation.target.cpu import CpuTarget, load_target
from services.generation.target.rows import Rows
from services.generation.target.target import PassOutput
from services.generation.target.timing import IdleTiming, KeptTimings, Timing, time_passes
from tests.fakes.table_target import TableTarget

TIMING = Timing(((1, 0.1 + 0.2), (2, 0.5)), 1e-9, 0.0)


@pytest.fixture(scope="module")
def target(model: Path) -> CpuTarget:
    return load_target(model, cache_tokens=4 * 64)


def test_a_later_start_finds_the_timing_of_an_earlier_one(target: CpuTarget, tmp_path: Path) -> None:
    KeptTimings(tmp_path).keep(target, TIMING)
    assert KeptTimings(tmp_path).find(target) == TIMING
    other = copy(target)
    other.threads = target.threads + 1
    assert KeptTimings(tmp_path).find(other) is None


@pytest.mark.parametrize(
    "text",
    [None, "", "[]", "null", "{", "[" * 100_000, '{"passes": [[1, 0.5]], "key": 0.0, "seen": 0.0, "digest": ""}'],
)
def test_a_changed_or_damaged_file_is_timed_again(target: CpuTarget, tmp_path: Path, text: str | None) -> None:
    kept = KeptTimings(tmp_path)
    kept.keep(target, TIMING)
    (path,) = tmp_path.glob("*.json")
    changed = json.dumps(json.loads(path.read_text()) | {"key": 2e-9})
    path.write_text(changed if text is None else text)
    assert kept.find(target) is None


@dataclass
class Timed(TableTarget):
    """A target whose i-th pass takes `seconds(i)`, and as long again for each ten rows; the clock stands still
    meanwhile.
    """

    seconds: Callable[[int], float]
    now: float = 0.0
    used: list[Timing] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(np.zeros((2, 2), np.float32))
        self.passes = count()

    def forward(self, rows: Rows, feature_layers: Sequence[int] = ()) -> PassOutput:
        self.now += self.seconds(next(self.passes)) * (0.9 + len(rows) / 10)
        return super().forward(rows, feature_layers)

    def idle(self, kept: Timing | None = None, waits: Callable[[], bool] = lambda: False, busy: float = 1.0) -> bool:
        """Whether an idle engine's timing is done, if its threads compute for a share `busy` of the time."""
        work = IdleTiming(self, kept, self.used.append, lambda: self.now, lambda: busy * self.threads * self.now)
        return work(waits)


def test_an_idle_engine_measures_times_for_later_starts() -> None:
    target = Timed(lambda number: 0.02)
    assert target.idle()
    (timing,) = target.used
    assert dict(timing.passes)[1] == pytest.approx(0.02)
    assert dict(timing.passes)[32] == pytest.approx(0.02 * 4.1)


def test_times_of_a_busy_machine_are_not_used() -> None:
    slower = Timed(lambda number: 0.02 if number < 60 else 0.04)
    assert not slower.idle()
    alone = Timed(lambda number: 0.02)
    assert not alone.idle(busy=0.5)
    assert (slower.used, alone.used) == ([], [])


def test_a_request_ends_a_timing_and_leaves_no_blocks_in_use() -> None:
    waits = iter([False] * 40 + [True])
    target = Timed(lambda number: 0.02)
    assert not target.idle(waits=lambda: next(waits))
    assert (target.used, target.blocks.used) == ([], 0)


def test_kept_times_are_checked_and_measured_again_if_they_are_wrong() -> None:
    right, busy, quick = (
        Timed(lambda number: 0.02),
        Timed(lambda number: 0.08 + 0.06 * (number > 40)),
        Timed(lambda number: 0.01),
    )
    kept = Timing(((1, 0.025), (2, 0.03)))
    assert (right.idle(kept), busy.idle(kept), quick.idle(kept)) == (True, False, True)
    assert (right.used, busy.used, len(quick.used)) == ([], [], 1)


def test_rough_times_are_of_few_passes() -> None:
    rough, whole = Timed(lambda number: 0.02), Timed(lambda number: 0.02)
    few = time_passes(rough, lambda: rough.now, rough=True)
    exact = dict(time_passes(whole, lambda: whole.now).samples)
    assert dict(few.samples) == pytest.approx({rows: exact[rows] for rows, _ in few.samples})
    assert next(rough.passes) < next(whole.passes) / 2
