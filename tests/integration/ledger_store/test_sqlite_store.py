"""Promises of the store on SQLite alone: files, locks, append-only tables, no trust in the bytes on the disk."""

import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from ledger.audit.log_verification import Report, verify_log
from ledger.errors import ChainError, LedgerError, NotWritten, StoreDamaged, StoreError, StoreLocked
from ledger.log.reader import LedgerReader
from ledger.log.store import entries_from
from ledger.sql.database import store_errors
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from tests.integration.ledger_store.test_fsck import tamper
from tests.integration.ledger_store.writing import writing
from tests.unit.ledger.builders import ORIGIN, TRUSTED, content, signed_receipt

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


def append(path: Path, numbers: range) -> list[int]:
    with writing(path, path.with_name("keys.db")) as (_, sequencer):
        futures = [sequencer.append(signed_receipt(number), content(number)) for number in numbers]
        return [future.result().index for future in futures]


def verify(path: Path) -> Report:
    with closing(SqlEntryStore.open_for_reading(path)) as store:
        return verify_log(entries_from(store, page=4), store.latest_checkpoint(), TRUSTED, ORIGIN)


def test_a_new_ledger_is_for_its_owners_eyes_only(path: Path) -> None:
    with (
        closing(SqlEntryStore.open(path, path.with_name("keys.db"))),
        closing(SqlGuard.open(path.with_name("guard.db"))),
    ):
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir() if file.is_file()}
    assert set(modes.values()) == {0o600}, modes


def test_commits_are_on_disk_before_they_are_answered(path: Path) -> None:
    with closing(SqlEntryStore.open(path)) as store, store._database.writing() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}  # 2 is FULL


def test_a_second_writing_process_is_refused_and_told_who_holds_the_ledger(path: Path) -> None:
    script = "from pathlib import Path; from ledger.sql.store import SqlEntryStore as Store; "
    script += f"Store.open(Path({str(path)!r}))"
    with closing(SqlEntryStore.open(path)):
        second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert second.returncode != 0
    assert "StoreLocked" in second.stderr
    assert f"pid {os.getpid()}" in second.stderr


def test_a_refused_second_opening_leaves_the_first_its_locks(path: Path) -> None:
    with closing(SqlEntryStore.open(path)) as store:
        store.size()
        held, inode = Path("/proc/locks"), f":{path.stat().st_ino} "
        before = held.read_text().count(inode)
        with pytest.raises(StoreLocked):
            SqlEntryStore.open(path)
        assert held.read_text().count(inode) == before > 0


def test_readers_look_on_while_a_writer_writes(path: Path) -> None:
    with writing(path) as (store, sequencer):
        reader, seen = LedgerReader(store, sequencer.board), []

        def look() -> None:
            size = 0
            while size < 60:
                size = reader.head().size
                seen.append(len(reader.entries(0, 100)) >= size)
                if size:
                    reader.inclusion_proof(size - 1, size)

        with ThreadPoolExecutor(4) as pool:
            watching = [pool.submit(look) for _ in range(4)]
            futures = [sequencer.append(signed_receipt(number)) for number in range(60)]
            assert [future.result().index for future in futures] == list(range(60))
        assert [each.result() for each in watching] == [None] * 4
        assert seen
        assert all(seen)
        with closing(SqlEntryStore.open_for_reading(path)) as other:
            assert other.size() == 60
            with pytest.raises(StoreError):
                other.record_checkpoint(1, b"")


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"certainly not a database" * 100)
    for opening in (SqlEntryStore.open, SqlEntryStore.open_for_reading):
        with pytest.raises(StoreDamaged):
            opening(path)


def test_a_database_that_lost_its_end_is_not_opened_for_writing(path: Path) -> None:
    append(path, range(5))
    tamper(path, 'DELETE FROM leaves WHERE "index" >= 3')
    with pytest.raises(ChainError) as caught:
        append(path, range(1))
    assert caught.value.index == 3


def test_a_database_with_a_damaged_page_raises_only_ledger_errors(path: Path) -> None:
    append(path, range(40))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    good = path.read_bytes()
    for at in range(0, len(good), 16 * 1024):
        path.write_bytes(good[:at] + b"\xa5" * 64 + good[at + 64 :])
        try:
            verify(path)
            append(path, range(2))
        except LedgerError:
            continue


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes: writes fail as they do on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 5_000, 40_000])
def test_a_write_that_the_system_cuts_short_is_refused_and_the_ledger_goes_on_once_there_is_room(
    path: Path, room: int
) -> None:
    with writing(path, path.with_name("keys.db"), path.with_name("guard.db")) as (_, sequencer):
        acknowledged = [sequencer.append(signed_receipt(number), content(number)).result() for number in range(3)]
        with file_size_limit(path.with_name(path.name + "-wal").stat().st_size + room):
            futures = [sequencer.append(signed_receipt(number), content(number)) for number in range(3, 60)]
            failures = [future.exception() for future in futures]
        assert any(failures)
        assert {type(failure) for failure in failures} <= {NotWritten, type(None)}
        assert sequencer.failure is None
        answers = [sequencer.append(signed_receipt(number), content(number)).result() for number in range(60)]
        assert sorted(answer.index for answer in answers) == list(range(60))
        assert [answer.entry for answer in answers[:3]] == [answer.entry for answer in acknowledged]
        with closing(SqlGuard.open_for_reading(path.with_name("guard.db"))) as guard:
            assert guard.read(ORIGIN) == sequencer.board.latest().checkpoint
    assert verify(path).ok


def test_a_ledger_that_finds_no_room_at_its_start_says_so_and_starts_once_there_is(path: Path) -> None:
    refused = 0
    for room in range(0, 300_000, 20_000):
        folder = path.with_name(str(room))
        with file_size_limit(room), suppress(StoreError):
            SqlEntryStore.open(folder / "ledger.db", folder / "keys.db").close()
            continue
        refused += 1
        SqlEntryStore.open(folder / "ledger.db", folder / "keys.db").close()
    assert refused > 1


def test_an_error_of_the_driver_itself_is_one_of_the_store() -> None:
    """A pragma's: on a full disk, that which empties the write-ahead log."""
    with pytest.raises(StoreError), store_errors():
        raise sqlite3.OperationalError("database or disk is full")
