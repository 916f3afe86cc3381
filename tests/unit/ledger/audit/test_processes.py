"""Work that is divided among processes of Python."""

import os
from collections.abc import Iterator

import pytest

from ledger.audit.processes import Processes
from ledger.errors import StoreError


def divided(number: int) -> tuple[int, int]:
    return 100 // number, os.getpid()


def test_results_come_in_the_order_of_the_jobs_from_several_processes() -> None:
    results = list(Processes(2).map(divided, range(1, 31)))
    assert [result for result, _ in results] == [100 // number for number in range(1, 31)]
    assert len({process for _, process in results} - {os.getpid()}) >= 1


def test_few_jobs_are_done_here_and_few_are_taken_ahead() -> None:
    taken = 0

    def jobs() -> Iterator[int]:
        nonlocal taken
        for number in range(1, 1000):
            taken += 1
            yield number

    results = Processes(2).map(divided, jobs())
    assert next(results) == (100, os.getpid())
    assert taken == 1
    for _ in range(4):
        next(results)
    assert taken < 20


def test_an_error_of_a_job_is_raised_in_its_place() -> None:
    results = Processes(2).map(divided, [1, 2, 3, 4, 5, 0, 7])
    assert [next(results)[0] for _ in range(5)] == [100, 50, 33, 25, 20]
    with pytest.raises(ZeroDivisionError):
        next(results)


def ended(number: int) -> int:
    if number == 6:
        os._exit(1)
    return number


def test_a_process_that_dies_is_an_error_and_no_result() -> None:
    results = Processes(2).map(ended, range(1, 20))
    assert [next(results) for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(StoreError):
        list(results)
