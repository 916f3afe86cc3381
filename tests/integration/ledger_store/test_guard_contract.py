"""The contract of `ledger.log.continuity.Guard`, run on SQLite, PostgreSQL and the unit tests' guard in memory."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from ledger.errors import NotFound, StoreError, StoreLocked
from ledger.log.continuity import Guard
from ledger.sql.guard import SqlGuard
from ledger.tree.checkpoint import Checkpoint
from tests.unit.ledger.builders import ORIGIN
from tests.unit.ledger.log.memory_store import MemoryGuard

FIRST, SECOND, THIRD = (Checkpoint(ORIGIN, size, bytes([size]) * 32) for size in (0, 3, 4))


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def guard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guard]:
    guard = _opened(request, tmp_path)
    yield guard
    guard.close()
    guard.close()


def _opened(request: pytest.FixtureRequest, tmp_path: Path) -> Guard:
    if request.param == "sqlite":
        return SqlGuard.open(tmp_path / "guard.db")
    if request.param == "postgres":
        return SqlGuard.open(request.getfixturevalue("postgres_url"))
    return MemoryGuard()


def test_a_head_replaces_the_one_before_it(guard: Guard) -> None:
    assert guard.read(ORIGIN) is None
    for old, new in ((None, FIRST), (FIRST, SECOND), (SECOND, THIRD)):
        guard.compare_and_swap(old, new)
        assert guard.read(ORIGIN) == new


@pytest.mark.parametrize("old", [None, FIRST, THIRD, Checkpoint(ORIGIN, SECOND.size, FIRST.root)])
def test_a_head_cannot_be_replaced_by_a_writer_that_expects_another(guard: Guard, old: Checkpoint | None) -> None:
    guard.compare_and_swap(None, SECOND)
    with pytest.raises(StoreLocked):
        guard.compare_and_swap(old, THIRD)
    assert guard.read(ORIGIN) == SECOND


def test_logs_are_kept_apart(guard: Guard) -> None:
    other = Checkpoint("other.example/log", 9, bytes(32))
    guard.compare_and_swap(None, FIRST)
    guard.compare_and_swap(None, other)
    assert (guard.read(ORIGIN), guard.read(other.origin)) == (FIRST, other)
    with pytest.raises(StoreLocked):
        guard.compare_and_swap(Checkpoint("third.example/log", 0, FIRST.root), THIRD)


def test_of_many_who_swap_the_same_head_one_succeeds(guard: Guard) -> None:
    guard.compare_and_swap(None, FIRST)
    won: list[int] = []

    def swap(number: int) -> None:
        try:
            guard.compare_and_swap(FIRST, Checkpoint(ORIGIN, 1, bytes([number]) * 32))
        except StoreLocked:
            return
        won.append(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(swap, range(8)))
    assert len(won) == 1
    assert guard.read(ORIGIN) == Checkpoint(ORIGIN, 1, bytes([won[0]]) * 32)


def test_a_guard_has_one_writer_and_any_number_of_readers(tmp_path: Path, postgres_url: str) -> None:
    for target in (tmp_path / "guard.db", postgres_url):
        with closing(SqlGuard.open(target)) as guard, closing(SqlGuard.open_for_reading(target)) as reader:
            guard.compare_and_swap(None, FIRST)
            assert reader.read(ORIGIN) == FIRST
            with pytest.raises(StoreLocked):
                SqlGuard.open(target)
            with pytest.raises(StoreError, match="reading"):
                reader.compare_and_swap(FIRST, SECOND)
        with closing(SqlGuard.open(target)) as again:
            assert again.read(ORIGIN) == FIRST


def test_what_is_no_guard_is_refused(tmp_path: Path, postgres_url: str) -> None:
    with pytest.raises(NotFound):
        SqlGuard.open_for_reading(tmp_path / "guard.db")
    with pytest.raises(StoreError):
        SqlGuard.open_for_reading(postgres_url)
    (tmp_path / "text").write_bytes(b"certainly not a database" * 100)
    for opening in (SqlGuard.open, SqlGuard.open_for_reading):
        with pytest.raises(StoreError):
            opening(tmp_path / "text")
