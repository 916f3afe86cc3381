"""A training run gives way on a busy machine and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from demo.toy.threads import PoliteThreads


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _run_step(threads: PoliteThreads, clock: list[float], cores: float) -> int:
    """One step of a second in which the process got `cores` cores; returns the threads of the next step."""
    threads.begin_step()
    clock[0] += 1.0
    clock[1] += cores
    threads.end_step()
    return torch.get_num_threads()


def test_threads_that_get_their_cores_stay() -> None:
    clock = [0.0, 0.0]
    threads = PoliteThreads(2, wall=lambda: clock[0], cpu=lambda: clock[1])
    assert [_run_step(threads, clock, cores=1.9) for _ in range(3)] == [2, 2, 2]


def test_a_busy_machine_costs_one_thread_for_a_while() -> None:
    clock = [0.0, 0.0]
    threads = PoliteThreads(2, wall=lambda: clock[0], cpu=lambda: clock[1])
    assert _run_step(threads, clock, cores=1.1) == 1
    after = [_run_step(threads, clock, cores=1.0) for _ in range(40)]
    assert after[:20] == [1] * 20
    assert 2 in after
