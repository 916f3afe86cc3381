"""FutureBridge of another thread, brought to the event loop; the errors of callers when a database fails."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from ledger.errors import NotWritten, StoreDamaged, StoreError
from services.ledger.intake import FutureBridge
from services.ledger.ledger_errors import to_kolm_error


async def test_values_and_errors_arrive_and_one_round_brings_many() -> None:
    rounds = 0

    def delivered() -> None:
        nonlocal rounds
        rounds += 1

    answers = FutureBridge(delivered)
    futures: list[Future[int]] = [Future() for _ in range(100)]
    waiting = [answers.awaitable(future) for future in futures]

    def answer() -> None:
        futures[0].set_exception(ValueError("no"))
        for number, future in enumerate(futures[1:], 1):
            future.set_result(number)

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()  # the event loop waits meanwhile, so that all of it is one round
    assert await asyncio.gather(*waiting[1:]) == list(range(1, 100))
    with pytest.raises(ValueError, match="no"):
        await waiting[0]
    assert rounds == 1


async def test_a_second_round_arrives_like_the_first() -> None:
    answers = FutureBridge(lambda: None)
    came = []
    for number in range(3):
        future: Future[int] = Future()
        waiting = answers.awaitable(future)
        future.set_result(number)
        came.append(await asyncio.wait_for(waiting, 60))
    assert came == [0, 1, 2]


async def test_who_no_longer_waits_is_passed_over() -> None:
    answers = FutureBridge(lambda: None)
    gone: Future[int] = Future()
    here: Future[int] = Future()
    answers.awaitable(gone).cancel()
    waiting = answers.awaitable(here)
    gone.set_result(1)
    here.set_result(2)
    assert await asyncio.wait_for(waiting, 60) == 2


@pytest.mark.parametrize(
    ("error", "lines"),
    [(NotWritten("the disk is full"), 0), (StoreError("cannot read"), 0), (StoreDamaged("cannot read"), 1)],
)
def test_a_call_that_fails_costs_no_line_of_the_log_unless_the_database_is_damaged(
    error: StoreError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = to_kolm_error(error, "entry", "7")
    assert (told.reason, "full" in str(told)) == ("STORE_FAILED", False)
    assert len(caplog.records) == lines
