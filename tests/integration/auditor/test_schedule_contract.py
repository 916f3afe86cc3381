"""The contract of a schedule, over SQLite and PostgreSQL: leases, heartbeats, attempts, dead letters, the draw."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.auditor.audit_error import ScheduleError
from services.auditor.schedule import DEAD, LEASED, WAITING, Schedule, open_database, sqlite_url

LEASE, PAUSE, ATTEMPTS = 60.0, 30.0, 3


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return sqlite_url(tmp_path / "auditor.sqlite3")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def auditors(url: str, clock: Clock) -> Iterator[list[Schedule]]:
    """Two auditors, each with connections of its own."""
    opened = [
        Schedule(open_database(url), lease_seconds=LEASE, pause_seconds=PAUSE, max_attempts=ATTEMPTS, clock=clock)
        for _ in range(2)
    ]
    yield opened
    for each in opened:
        each.close()


def states(schedule: Schedule) -> dict[int, str]:
    return {job.receipt_index: job.state for job in schedule.jobs()}


def test_candidates_are_leased_in_order_and_to_one_auditor_each(auditors: list[Schedule]) -> None:
    one, other = auditors
    candidates = list(range(3, 200, 3))
    leased = [auditor.lease(candidates) for auditor in (one, other, one)]
    assert [lease.receipt_index for lease in leased if lease is not None] == [3, 6, 9]
    assert states(one)[3] == states(other)[9] == LEASED
    assert states(one)[12] == WAITING
    assert one.lease([3, 6, 9]) is None


def test_only_what_is_asked_for_is_leased(auditors: list[Schedule]) -> None:
    one, other = auditors
    lease = one.lease([1, 2])
    assert lease is not None
    one.give_back(lease)
    assert other.lease([7]) is not None
    assert other.lease([7]) is None


def test_more_candidates_than_fit_one_statement_are_tried_to_the_end(auditors: list[Schedule]) -> None:
    one, other = auditors
    candidates = list(range(150))
    held = {lease.receipt_index for lease in (one.lease([index]) for index in range(149)) if lease is not None}
    assert len(held) == 149
    lease = other.lease(candidates)
    assert lease is not None
    assert lease.receipt_index == 149


def test_a_lease_that_is_renewed_holds_and_one_that_is_not_is_taken_over(
    auditors: list[Schedule], clock: Clock
) -> None:
    one, other = auditors
    lease = one.lease([5])
    assert lease is not None
    clock.now += LEASE - 1
    assert one.renew(lease)
    clock.now += LEASE - 1
    assert other.lease([5]) is None
    clock.now += 2
    taken = other.lease([5])
    assert taken is not None
    assert (taken.receipt_index, taken.attempts) == (5, 2)
    assert not one.renew(lease)
    one.finish(lease)  # too late: it is the other's now
    one.put_back(lease, "mine?")
    assert states(one) == {5: LEASED}
    assert other.renew(taken)


def test_a_finished_job_is_gone_and_one_given_back_has_not_been_tried(auditors: list[Schedule]) -> None:
    one, other = auditors
    lease = one.lease([5])
    assert lease is not None
    one.give_back(lease)
    again = other.lease([5])
    assert again is not None
    assert again.attempts == 1
    other.finish(again)
    assert one.jobs() == ()


def test_a_failed_attempt_pauses_ever_longer_and_the_last_one_is_a_dead_letter(
    auditors: list[Schedule], clock: Clock
) -> None:
    one, other = auditors
    for attempt in range(1, ATTEMPTS + 1):
        lease = one.lease([5])
        assert lease is not None
        assert lease.attempts == attempt
        one.put_back(lease, f"failure {attempt}")
        assert other.lease([5]) is None
        clock.now += PAUSE * attempt
    assert one.lease([5]) is None
    (job,) = one.jobs()
    assert (job.state, job.attempts, job.error) == (DEAD, ATTEMPTS, f"failure {ATTEMPTS}")
    one.forget([5])
    assert other.lease([5]) is not None


def test_auditors_that_die_again_and_again_on_one_receipt_make_it_a_dead_letter(
    auditors: list[Schedule], clock: Clock
) -> None:
    one, other = auditors
    for auditor in (one, other, one):
        assert auditor.lease([5]) is not None
        clock.now += LEASE + 1
    assert other.lease([5]) is None
    (job,) = other.jobs()
    assert (job.state, job.attempts) == (DEAD, ATTEMPTS)
    assert "ended while examining it" in job.error


def test_what_somebody_holds_is_not_forgotten(auditors: list[Schedule]) -> None:
    one, other = auditors
    assert one.lease([5]) is not None
    other.lease([6, 7])
    other.forget([5, 7])
    assert states(one) == {5: LEASED, 6: LEASED}


def test_many_threads_at_once_never_hold_the_same_receipt(auditors: list[Schedule]) -> None:
    taken: list[int] = []

    def work(schedule: Schedule) -> None:
        while (lease := schedule.lease(range(24))) is not None:
            taken.append(lease.receipt_index)

    threads = [threading.Thread(target=work, args=(auditors[number % 2],)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(24))


def test_one_auditor_draws_at_a_time_and_a_draw_that_was_kept_outlives_it(
    auditors: list[Schedule], clock: Clock
) -> None:
    one, other = auditors
    turn = one.take_draw()
    assert turn is not None
    assert turn.envelope is None
    assert other.take_draw() is None
    assert one.keep_draw(turn, b"signed")
    clock.now += LEASE + 1
    taken = other.take_draw()
    assert taken is not None
    assert taken.envelope == b"signed"
    assert not one.keep_draw(turn, b"another")
    one.end_draw(turn, done=True)  # not its turn any more
    other.end_draw(taken, done=False)
    again = one.take_draw()
    assert again is not None
    assert again.envelope == b"signed"
    one.end_draw(again, done=True)
    fresh = other.take_draw()
    assert fresh is not None
    assert fresh.envelope is None


def test_auditors_that_start_at_once_make_the_tables_once(url: str) -> None:
    engines = []
    threads = [threading.Thread(target=lambda: engines.append(open_database(url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engines) == 4
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize("text", ["", "no url", "mysql://h/d", "sqlite://"])
def test_a_url_of_no_such_database_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ScheduleError, match="expected sqlite:///PATH"):
        open_database(text)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "auditor.sqlite3"
    path.write_bytes(b"not a database, for sure" * 100)
    with pytest.raises(ScheduleError, match="cannot open the auditor's schedule"):
        open_database(sqlite_url(path))


def test_making_the_tables_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        open_database(sqlite_url(tmp_path / "auditor.sqlite3")).dispose()
    assert [record.name for record in caplog.records] == []
