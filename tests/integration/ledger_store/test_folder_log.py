"""A log in a folder: what a power cut, a full disk, an old copy, a fork and a second writer leave of it."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

import ledger.log.folder as folder_module
from ledger.audit.log_verification import verify_log
from ledger.bundle.tiles import TiledTree, TileFolder
from ledger.errors import ChainError, NotWritten, RolledBack, Stopped, StoreError, StoreLocked
from ledger.keys.note import Note
from ledger.log.folder import FolderLog
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.sequencer import Sequencer
from ledger.log.store import entries_from
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import tree_root
from ledger.tree.tile import TileHashes
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, erasure, receipt_id, signed, signed_receipt


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def opened(home: Path, *, new_index: bool = False) -> SqlEntryStore:
    home.mkdir(exist_ok=True)
    return SqlEntryStore.open(home / "index.db", home / "keys.db", folder=home / "log", new_index=new_index)


def sequencer(store: SqlEntryStore) -> Sequencer:
    return Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, batch_size=64)


def append(home: Path, numbers: range) -> None:
    """Entries with contents, in batches, and a clean stop."""
    with closing(opened(home)) as store, closing(sequencer(store)) as running:
        answers = [running.append(signed_receipt(number), content(number)) for number in numbers]
        assert [answer.result().index for answer in answers] == list(numbers)


def killed(home: Path, numbers: range, into: Path) -> None:
    """The same, and a copy of what a process that is killed now leaves on its disk."""
    with closing(opened(home)) as store, closing(sequencer(store)) as running:
        answers = [running.append(signed_receipt(number), content(number)) for number in numbers]
        assert [answer.result().index for answer in answers] == list(numbers)
        shutil.copytree(home, into)


def check(home: Path, size: int) -> None:
    """All is there, for the index and for whoever reads the files, and the log goes on."""
    with closing(opened(home)) as store:
        with closing(sequencer(store)) as running:
            assert running.append(signed_receipt(0)).result().index == 0
        report = verify_log(entries_from(store), store.latest_checkpoint(), TRUSTED, ORIGIN)
        assert (report.ok, report.size) == (True, size), report.problem
        assert [store.content(index) for index in range(size)] == [content(index) for index in range(size)]
        assert len(store.receipts(ReceiptFilter(), -1, size + 1)) == size
        assert store.receipts(ReceiptFilter(), size - 2, 1)[0].entry == store.entry(size - 1)
    files = TileFolder(home / "log")
    head = Checkpoint.from_text(Note.from_bytes((home / "log/checkpoint").read_bytes()).text)
    tree = TiledTree(files, head.size)
    assert (head.size, tree_root(size, TileHashes(tree))) == (size, head.root)
    assert verify_log(tree.entries(0), None, TRUSTED).ok


def test_a_log_goes_on_after_a_clean_stop_and_any_web_server_can_show_it(home: Path) -> None:
    append(home, range(300))
    check(home, 300)
    append(home, range(300, 301))
    check(home, 301)
    assert [path.name for path in sorted((home / "log").glob("journal-*"))] == [f"journal-{301:016d}"]
    assert (home / "log/journal-0000000000000301").stat().st_mode & 0o077 == 0
    assert (home / "log/tile/entries/000").is_file()
    assert not (home / "log/tile/entries/000.p").exists()


def test_a_power_cut_may_empty_every_file_that_no_fsync_has_seen(home: Path, tmp_path: Path) -> None:
    append(home, range(100))
    synced = {path.relative_to(home) for path in (home / "log/tile").rglob("*") if path.is_file()}
    killed(home, range(100, 600), tmp_path / "cut")
    for path in (tmp_path / "cut/log/tile").rglob("*"):
        if path.is_file() and path.relative_to(tmp_path / "cut") not in synced:
            path.write_bytes(b"")
    (tmp_path / "cut/log/checkpoint").write_bytes(b"")
    check(tmp_path / "cut", 600)


def test_a_power_cut_that_takes_the_newest_transactions_costs_no_content(home: Path, tmp_path: Path) -> None:
    append(home, range(100))
    shutil.copytree(home, tmp_path / "before")
    killed(home, range(100, 300), tmp_path / "cut")
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (tmp_path / "cut" / name).unlink(missing_ok=True)
        if (tmp_path / "before" / name).exists():
            shutil.copy(tmp_path / "before" / name, tmp_path / "cut" / name)
    check(tmp_path / "cut", 300)


def test_a_record_that_is_half_there_was_told_to_nobody(home: Path, tmp_path: Path) -> None:
    killed(home, range(64), tmp_path / "cut")
    (journal,) = (tmp_path / "cut/log").glob("journal-*")
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[:1000])
    check(tmp_path / "cut", 64)


def test_an_erasure_is_taken_over_too(home: Path, tmp_path: Path) -> None:
    append(home, range(5))
    shutil.copy(home / "index.db", tmp_path / "index.db")
    with closing(opened(home)) as store, closing(sequencer(store)) as running:
        assert running.append(signed(erasure(2, 2))).result().index == 5
    shutil.copy(tmp_path / "index.db", home / "index.db")
    with closing(opened(home)) as store:
        assert (store.size(), store.erased_by(2), store.content(2)) == (6, 5, None)
        assert store.content(3) == content(3)


def test_an_index_is_made_again_from_the_log(home: Path) -> None:
    append(home, range(300))
    with closing(opened(home, new_index=True)) as store:
        assert store.size() == 300
    check(home, 300)
    (home / "index.db").unlink()
    with closing(opened(home)) as store:
        assert store.indexes_of_receipts([receipt_id(7)]) == {receipt_id(7): 7}
        assert store.latest_checkpoint() == (home / "log/checkpoint").read_bytes()


@pytest.mark.parametrize("call", ["write", "fdatasync", "replace"])
def test_a_full_disk_loses_nothing_and_is_over_once_there_is_room(
    home: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with closing(opened(home)) as store, closing(sequencer(store)) as running:
        assert running.append(signed_receipt(0), content(0)).result().index == 0
        with monkeypatch.context() as patched:
            patched.setattr(folder_module.os, call, full)
            with pytest.raises(NotWritten):
                running.append(signed_receipt(1), content(1)).result()
        assert running.append(signed_receipt(1), content(1)).result().index == 1
        assert running.failure is None
    check(home, 2)


def test_an_old_copy_of_the_folder_is_refused(home: Path, tmp_path: Path) -> None:
    append(home, range(10))
    shutil.copytree(home / "log", tmp_path / "old")
    append(home, range(10, 20))
    shutil.rmtree(home / "log")
    shutil.copytree(tmp_path / "old", home / "log")
    with pytest.raises(RolledBack):
        opened(home)


def test_the_folder_of_a_fork_is_refused(home: Path, tmp_path: Path) -> None:
    append(home, range(10))
    with closing(opened(tmp_path / "fork")) as store, closing(sequencer(store)) as running:
        for number in range(20, 32):
            running.append(signed_receipt(number)).result()
    shutil.rmtree(home / "log")
    shutil.copytree(tmp_path / "fork/log", home / "log")
    with pytest.raises(ChainError):
        opened(home)


def test_a_log_and_its_index_are_not_taken_for_another_kind(home: Path, tmp_path: Path) -> None:
    append(home, range(3))
    with pytest.raises(StoreError):
        SqlEntryStore.open(home / "index.db", home / "keys.db")
    with closing(SqlEntryStore.open(tmp_path / "whole.db")) as store, closing(sequencer(store)) as running:
        running.append(signed_receipt(0)).result()
    with pytest.raises(StoreError):
        SqlEntryStore.open(tmp_path / "whole.db", folder=tmp_path / "log")


def test_a_second_writer_is_refused(home: Path) -> None:
    with closing(opened(home)), pytest.raises(StoreLocked):
        FolderLog.open(home / "log")


def test_where_locks_do_not_work_the_journal_tells_of_another_writer(home: Path) -> None:
    with closing(opened(home)) as store:
        running = sequencer(store)
        running.append(signed_receipt(0)).result()
        (journal,) = (home / "log").glob("journal-*")
        with journal.open("ab") as other:
            other.write(b"of another writer")
        with pytest.raises(StoreLocked):
            running.append(signed_receipt(1)).result()
        with pytest.raises(Stopped):
            running.append(signed_receipt(2))
        running.close()


@pytest.fixture
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "JOURNAL_BYTES", 200_000)


@pytest.mark.usefixtures("small_journals")
def test_journals_go_once_their_files_are_on_the_disk(home: Path, tmp_path: Path) -> None:
    killed(home, range(800), tmp_path / "cut")
    journals = sorted((tmp_path / "cut/log").glob("journal-*"))
    assert 0 < sum(path.stat().st_size for path in journals) < 1_000_000
    assert int(journals[0].name.removeprefix("journal-")) > 0
    check(tmp_path / "cut", 800)
    with closing(SqlEntryStore.open_for_reading(tmp_path / "cut/index.db", folder=tmp_path / "cut/log")) as store:
        assert (store.size(), len(list(entries_from(store)))) == (800, 800)
    assert not [path for path in os.listdir(tmp_path / "cut/log/tile/entries") if path in ("000.p", "001.p", "002.p")]
