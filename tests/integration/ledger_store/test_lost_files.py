"""Files that vanish under a running ledger, and a lock that is lost: it acknowledges nothing more, or has it again."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from ledger.errors import LedgerError, Stopped, StoreLocked, StoreReplaced
from ledger.log.store import entries_from
from ledger.sql.store import SqlEntryStore
from tests.integration.ledger_store.writing import lose_the_lock, writing
from tests.unit.ledger.builders import content, signed_receipt

DATABASES = ("ledger.db", "guard.db", "keys.db")
PATIENCE = 60


class Running:
    """A ledger over files in one folder."""

    def __init__(self, folder: Path, stack: ExitStack, probe_seconds: float) -> None:
        self.folder = folder
        files = (folder / name for name in ("ledger.db", "keys.db", "guard.db"))
        self.store, self.sequencer = stack.enter_context(writing(*files, probe_seconds=probe_seconds))

    def append(self, number: int) -> bytes:
        return self.sequencer.append(signed_receipt(number), content(number)).result().entry


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:
        yield lambda probe_seconds=1000.0: Running(tmp_path, stack, probe_seconds)


def replaced(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


@pytest.mark.parametrize("name", [f"{name}{suffix}" for name in DATABASES for suffix in ("", "-wal", "-shm")])
@pytest.mark.parametrize("lose", [Path.unlink, replaced, moved])
def test_nothing_is_acknowledged_once_a_file_is_not_the_one_that_was_opened(
    name: str, lose: Callable[[Path], None], run: Callable[..., Running]
) -> None:
    ledger = run()
    kept = [ledger.append(number) for number in range(3)]
    lose(ledger.folder / name)
    with pytest.raises(StoreReplaced) as caught:
        ledger.append(3)
    assert caught.value.path == str(ledger.folder / name)
    with pytest.raises(Stopped):
        ledger.append(4)
    assert isinstance(ledger.sequencer.failure, StoreReplaced)
    assert not ledger.sequencer.takes_entries
    assert list(entries_from(ledger.store))[:3] == kept  # it goes on reading what it has open


@pytest.mark.parametrize("name", DATABASES)
@pytest.mark.parametrize("bytes_left", [0, 16384])
def test_nothing_is_acknowledged_once_a_database_was_cut_off(
    name: str, bytes_left: int, run: Callable[..., Running]
) -> None:
    ledger = run()
    for number in range(3):
        ledger.append(number)
    with closing(sqlite3.connect(ledger.folder / name)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").close()
    ledger.append(3)
    os.truncate(ledger.folder / name, bytes_left)
    with pytest.raises(LedgerError):
        ledger.append(4)
    with pytest.raises(LedgerError):
        ledger.append(5)


def test_a_file_that_vanishes_under_an_idle_ledger_is_noticed_before_the_next_entry(
    run: Callable[..., Running],
) -> None:
    ledger = run(probe_seconds=0.01)
    ledger.append(0)
    (ledger.folder / "keys.db").unlink()
    ledger.sequencer._thread.join(PATIENCE)
    assert isinstance(ledger.sequencer.failure, StoreReplaced)


def test_what_was_deleted_is_copied_from_the_process_that_still_has_it(
    run: Callable[..., Running], tmp_path: Path
) -> None:
    ledger = run()
    kept = [ledger.append(number) for number in range(3)]
    wanted = {name: (tmp_path / name).stat().st_ino for name in ("ledger.db", "ledger.db-wal")}
    for name in wanted:
        (tmp_path / name).unlink()
    with pytest.raises(StoreReplaced) as caught:
        ledger.append(3)
    assert "/proc/" in str(caught.value)
    (tmp_path / "saved").mkdir()
    for name, inode in wanted.items():
        found = next(fd for fd in Path("/proc/self/fd").iterdir() if fd.exists() and fd.stat().st_ino == inode)
        shutil.copy(found, tmp_path / "saved" / name)
    with closing(SqlEntryStore.open(tmp_path / "saved/ledger.db")) as saved:
        assert list(entries_from(saved)) == kept


def test_a_lock_that_was_lost_is_taken_again_before_anything_is_written(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with writing(postgres_url, probe_seconds=1000.0) as (store, running):
        for times in range(1, 3):
            lose_the_lock(postgres_url)
            for number in range(times + 1):
                assert running.append(signed_receipt(number)).result().index == number
            assert store.lock_losses == times
            with pytest.raises(StoreLocked):
                SqlEntryStore.open(postgres_url)
        assert [line.levelname for line in caplog.records if "writer's lock" in line.message] == ["WARNING"] * 2


def test_a_lost_lock_is_taken_again_while_no_caller_sends_entries(postgres_url: str) -> None:
    with writing(postgres_url, probe_seconds=0.01) as (store, running):
        lose_the_lock(postgres_url)
        while not store.lock_losses:
            assert running.failure is None
        with pytest.raises(StoreLocked):
            SqlEntryStore.open(postgres_url)


def test_a_writer_whose_lock_another_has_by_now_stops_even_if_idle(postgres_url: str) -> None:
    with writing(postgres_url, probe_seconds=1000.0) as (_, running):
        lose_the_lock(postgres_url)
        with closing(SqlEntryStore.open(postgres_url)):
            with pytest.raises(LedgerError):
                running.append(signed_receipt(0)).result()
            assert isinstance(running.failure, StoreLocked)
