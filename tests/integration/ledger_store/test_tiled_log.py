"""A log in a folder or a bucket: what a power cut, a full disk, an old copy, a fork and a second writer leave of it."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError, PreconditionError

import ledger.log.folder as folder_module
import ledger.log.tiled_log as tiled_module
from ledger.audit.log_verification import verify_log
from ledger.bundle.tiles import TiledTree, TileFolder
from ledger.errors import ChainError, NotWritten, RolledBack, Stopped, StoreError, StoreLocked
from ledger.keys.note import Note
from ledger.log.bucket import Bucket
from ledger.log.folder import Folder
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.sequencer import Sequencer
from ledger.log.store import entries_from
from ledger.log.tiled_log import TiledLog
from ledger.log.writer import Appended
from ledger.object_store import open_bucket
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.merkle import tree_root
from ledger.tree.tile import TileHashes
from tests.examples import grid
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, erasure, receipt_id, signed, signed_receipt


@dataclass(frozen=True)
class Home:
    """The folder of an index and its keys, and where the log is."""

    folder: Path
    log: str

    def bucket(self) -> Any:
        return open_bucket(self.log)

    def copied(self, into: Path) -> Path:
        """A copy of the log's files."""
        if self.log.startswith("file:"):
            shutil.copytree(self.folder / "log", into)
            return into
        for page in obstore.list(self.bucket()):
            for each in page:
                (into / each["path"]).parent.mkdir(parents=True, exist_ok=True)
                (into / each["path"]).write_bytes(bytes(obstore.get(self.bucket(), each["path"]).bytes()))
        return into

    def replace(self, copy: Path) -> None:
        """Put a copy in the place of the log."""
        if self.log.startswith("file:"):
            shutil.rmtree(self.folder / "log")
            shutil.copytree(copy, self.folder / "log")
            return
        obstore.delete(self.bucket(), [each["path"] for page in obstore.list(self.bucket()) for each in page])
        for path in copy.rglob("*"):
            if path.is_file():
                obstore.put(self.bucket(), str(path.relative_to(copy)), path.read_bytes())

    def beside(self, name: str) -> "Home":
        """Another one, in the same kind of place."""
        folder = self.folder.with_name(name)
        in_folder = self.log.startswith("file:")
        return Home(folder, (folder / "log").as_uri() if in_folder else self.log.replace("/some/", f"/{name}/"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home", (tmp_path / "home/log").as_uri())


@pytest.fixture
def bucket_home(tmp_path: Path, s3_url: str) -> Home:
    return Home(tmp_path / "home", s3_url)


@pytest.fixture(params=["home", "bucket_home"], ids=["folder", "bucket"])
def either(request: pytest.FixtureRequest) -> Home:
    found: Home = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def patched() -> Iterator[pytest.MonkeyPatch]:
    """Undone within a test, without the credentials of its bucket."""
    with pytest.MonkeyPatch.context() as patched:
        yield patched


def opened(home: Home, *, new_index: bool = False) -> SqlEntryStore:
    home.folder.mkdir(exist_ok=True)
    return SqlEntryStore.open(home.folder / "index.db", home.folder / "keys.db", log=home.log, new_index=new_index)


def sequencer(store: SqlEntryStore, batch_size: int = 64) -> Sequencer:
    return Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, batch_size=batch_size)


def run(home: Home, numbers: Iterable[int]) -> tuple[SqlEntryStore, Sequencer]:
    """Entries with contents, in batches."""
    store = opened(home)
    running = sequencer(store)
    answers = [(number, running.append(signed_receipt(number), content(number))) for number in numbers]
    assert [answer.result().index for _, answer in answers] == [number for number, _ in answers]
    return store, running


def append(home: Home, numbers: range) -> None:
    """The same, and a clean stop."""
    store, running = run(home, numbers)
    running.close()
    store.close()


def killed(home: Home, numbers: range, into: Path) -> Home:
    """The same, and a copy of what a process that is killed now leaves on its disk."""
    store, running = run(home, numbers)
    assert store._log is not None
    store._log._place.wait()
    with store._log._showing:  # nothing moves meanwhile
        shutil.copytree(home.folder, into)
    running.close()
    store.close()
    return Home(into, (into / "log").as_uri())


def check(home: Home, size: int) -> None:
    """All is there, for the index and for whoever reads the files, and the log goes on."""
    with closing(opened(home)) as store:
        with closing(sequencer(store)) as running:
            assert running.append(signed_receipt(0)).result().index == 0
        report = verify_log(entries_from(store), store.latest_checkpoint(), TRUSTED, ORIGIN)
        assert (report.ok, report.size) == (True, size), report.problem
        assert [store.content(index) for index in range(size)] == [content(index) for index in range(size)]
        assert len(store.receipts(ReceiptFilter(), -1, size + 1)) == size
        assert store.receipts(ReceiptFilter(), size - 2, 1)[0].entry == store.entry(size - 1)
    files = TileFolder(home.copied(home.folder / f"shown at {size}"))
    head = Checkpoint.from_text(Note.from_bytes(files.read("checkpoint", 10_000)).text)
    tree = TiledTree(files, head.size)
    assert (head.size, tree_root(size, TileHashes(tree))) == (size, head.root)
    assert verify_log(tree.entries(0), None, TRUSTED).ok


def test_a_log_goes_on_after_a_clean_stop_and_any_web_server_can_show_it(either: Home, tmp_path: Path) -> None:
    append(either, range(300))
    check(either, 300)
    append(either, range(300, 301))
    check(either, 301)
    copy = either.copied(tmp_path / "copy")
    assert (copy / "tile/entries/000").is_file()
    assert not (copy / "tile/entries/000.p").exists()


def test_a_folder_keeps_one_journal_for_its_owner_alone(home: Home) -> None:
    append(home, range(300))
    (journal,) = (home.folder / "log").glob("journal-*")
    assert journal.name == f"journal-{300:016d}"
    assert journal.stat().st_mode & 0o077 == 0


def test_a_power_cut_may_empty_every_file_that_no_fsync_has_seen(home: Home, tmp_path: Path) -> None:
    append(home, range(100))
    synced = {path.relative_to(home.folder) for path in (home.folder / "log/tile").rglob("*") if path.is_file()}
    cut = killed(home, range(100, 600), tmp_path / "cut")
    for path in (cut.folder / "log/tile").rglob("*"):
        if path.is_file() and path.relative_to(cut.folder) not in synced:
            path.write_bytes(b"")
    (cut.folder / "log/checkpoint").write_bytes(b"")
    check(cut, 600)


def test_a_power_cut_that_takes_the_newest_transactions_costs_no_content(home: Home, tmp_path: Path) -> None:
    append(home, range(100))
    shutil.copytree(home.folder, tmp_path / "before")
    cut = killed(home, range(100, 300), tmp_path / "cut")
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (cut.folder / name).unlink(missing_ok=True)
        if (tmp_path / "before" / name).exists():
            shutil.copy(tmp_path / "before" / name, cut.folder / name)
    check(cut, 300)


def test_a_record_that_is_half_there_was_told_to_nobody(home: Home, tmp_path: Path) -> None:
    cut = killed(home, range(64), tmp_path / "cut")
    (journal,) = (cut.folder / "log").glob("journal-*")
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[:1000])
    check(cut, 64)


def test_an_index_that_fails_behind_the_log_costs_no_content(either: Home, patched: pytest.MonkeyPatch) -> None:
    with closing(opened(either)) as store, closing(sequencer(store)) as running:
        assert running.append(signed_receipt(0), content(0)).result().index == 0
        append_to_log = TiledLog.append

        def then_fail(self: TiledLog, *arguments: Any) -> None:
            append_to_log(self, *arguments)
            patched.undo()
            raise StoreError("the disk of the index is full")

        patched.setattr(TiledLog, "append", then_fail)
        with pytest.raises(NotWritten):
            running.append(signed_receipt(1), content(1)).result()
        assert running.append(signed_receipt(1), content(1)).result().index == 1
        assert store.content(1) == content(1)
    check(either, 2)


def test_an_erasure_is_taken_over_too(either: Home, tmp_path: Path) -> None:
    append(either, range(5))
    shutil.copy(either.folder / "index.db", tmp_path / "index.db")
    with closing(opened(either)) as store, closing(sequencer(store)) as running:
        assert running.append(signed(erasure(2, 2))).result().index == 5
    shutil.copy(tmp_path / "index.db", either.folder / "index.db")
    with closing(opened(either)) as store:
        assert (store.size(), store.erased_by(2), store.content(2)) == (6, 5, None)
        assert store.content(3) == content(3)


def test_an_index_is_made_again_from_the_log(either: Home, tmp_path: Path) -> None:
    append(either, range(300))
    with closing(opened(either, new_index=True)) as store:
        assert store.size() == 300
    check(either, 300)
    (either.folder / "index.db").unlink()
    with closing(opened(either)) as store:
        assert store.indexes_of_receipts([receipt_id(7)]) == {receipt_id(7): 7}
        assert store.latest_checkpoint() == (either.copied(tmp_path / "copy") / "checkpoint").read_bytes()


@pytest.fixture
def shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_module, "SHOWN_SECONDS", 0)


@pytest.mark.usefixtures("shown_at_once")
@pytest.mark.parametrize("call", ["write", "fdatasync", "replace"])
def test_a_full_disk_loses_nothing_and_is_over_once_there_is_room(
    home: Home, monkeypatch: pytest.MonkeyPatch, call: str
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


PUTS = {
    "journal": 2,
    "tile/entries/000.p/2": 2,
    "tile/0/000.p/2": 2,
    "checkpoint": 2,
    "tile/entries/000": 300,
    "tile/0/000": 300,
    "tile/1/000.p/1": 300,
}
"""Objects, and the number of entries at which they are put."""


@pytest.mark.usefixtures("shown_at_once")
@pytest.mark.parametrize(("path", "arrives"), grid(2, list(PUTS), [False, True]))
def test_a_bucket_that_fails_loses_nothing(
    bucket_home: Home, patched: pytest.MonkeyPatch, path: str, arrives: bool
) -> None:
    put, size = obstore.put, PUTS[path]
    with closing(opened(bucket_home)) as store, closing(sequencer(store, 512)) as running:
        assert running.append(signed_receipt(0), content(0)).result().index == 0

        def fail(bucket: Any, to: str, *arguments: Any, **options: Any) -> Any:
            if to != path:
                return put(bucket, to, *arguments, **options)
            patched.undo()
            if arrives:
                put(bucket, to, *arguments, **options)
            raise GenericError("the connection broke")

        patched.setattr(obstore, "put", fail)
        batch = [running.admit(signed_receipt(number), content(number)) for number in range(1, size)]
        assert {type(answer) for answer in running.submit_all(batch).result()} == {NotWritten}
        answers = running.submit_all(batch).result()
        assert [answer.index for answer in answers if isinstance(answer, Appended)] == [*range(1, size)]
        assert running.failure is None
    check(bucket_home, size)


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What an hour's clock would call."""
    due = list[Callable[[], None]]()

    class Clock(Timer):
        def start(self) -> None:
            due.append(self.function)

    monkeypatch.setattr(tiled_module, "Timer", Clock)
    monkeypatch.setattr(tiled_module, "SHOWN_SECONDS", 3600)
    return due


def test_a_checkpoint_that_waits_is_not_shown_while_the_log_is_read_again(
    home: Home, due: list[Callable[[], None]]
) -> None:
    store, running = run(home, [0])
    running.append(signed_receipt(1), content(1)).result()
    (show,) = due
    before = (home.folder / "log/checkpoint").read_bytes()
    assert store._log is not None
    store._log.replay()
    show()
    assert (home.folder / "log/checkpoint").read_bytes() == before
    running.close()
    store.close()
    check(home, 2)


def test_a_checkpoint_is_shown_though_nothing_follows_it(
    either: Home, due: list[Callable[[], None]], tmp_path: Path
) -> None:
    store, running = run(either, [0])
    for number in range(1, 300):
        running.append(signed_receipt(number), content(number)).result()
    (show,) = due
    before = TileFolder(either.copied(tmp_path / "before"))
    assert Checkpoint.from_text(Note.from_bytes(before.read("checkpoint", 10_000)).text).size <= 1
    assert not (tmp_path / "before/tile/entries/001.p").exists()
    show()
    files = TileFolder(either.copied(tmp_path / "after"))
    head = Checkpoint.from_text(Note.from_bytes(files.read("checkpoint", 10_000)).text)
    assert (head.size, tree_root(300, TileHashes(TiledTree(files, 300)))) == (300, head.root)
    assert len(list(TiledTree(files, 300).entries(0))) == 300
    running.close()
    store.close()


def test_a_swap_that_was_sent_twice_is_known_by_what_is_there(
    bucket_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put

    def twice(bucket: Any, to: str, *arguments: Any, **options: Any) -> Any:
        put(bucket, to, *arguments, **options)
        if options.get("mode"):
            raise PreconditionError("it is not what it was, since the first request has changed it")

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "put", twice)
        append(bucket_home, range(3))
    check(bucket_home, 3)


def test_an_old_copy_of_the_log_is_refused(either: Home, tmp_path: Path) -> None:
    append(either, range(10))
    old = either.copied(tmp_path / "old")
    append(either, range(10, 20))
    either.replace(old)
    with pytest.raises(RolledBack):
        opened(either)


def test_the_log_of_a_fork_is_refused(either: Home, tmp_path: Path) -> None:
    append(either, range(10))
    fork = either.beside("fork")
    with closing(opened(fork)) as store, closing(sequencer(store)) as running:
        for number in range(20, 32):
            running.append(signed_receipt(number)).result()
    either.replace(fork.copied(tmp_path / "forked"))
    with pytest.raises(ChainError):
        opened(either)


def test_a_log_and_its_index_are_not_taken_for_another_kind(either: Home, tmp_path: Path) -> None:
    append(either, range(3))
    with pytest.raises(StoreError):
        SqlEntryStore.open(either.folder / "index.db", either.folder / "keys.db")
    with closing(SqlEntryStore.open(tmp_path / "whole.db")) as store, closing(sequencer(store)) as running:
        running.append(signed_receipt(0)).result()
    with pytest.raises(StoreError):
        SqlEntryStore.open(tmp_path / "whole.db", log=either.beside("another").log)


def test_a_second_writer_is_refused(home: Home) -> None:
    with closing(opened(home)), pytest.raises(StoreLocked):
        Folder.open(home.folder / "log")


def test_where_locks_do_not_work_the_journal_tells_of_another_writer(home: Home) -> None:
    with closing(opened(home)) as store:
        running = sequencer(store)
        running.append(signed_receipt(0)).result()
        (journal,) = (home.folder / "log").glob("journal-*")
        with journal.open("ab") as other:
            other.write(b"of another writer")
        with pytest.raises(StoreLocked):
            running.append(signed_receipt(1)).result()
        with pytest.raises(Stopped):
            running.append(signed_receipt(2))
        running.close()


@pytest.mark.usefixtures("shown_at_once")
@pytest.mark.parametrize("late", ["append", "probe", "publish"])
def test_of_two_writers_on_one_bucket_the_later_goes_on_and_the_other_stops(bucket_home: Home, late: str) -> None:
    """Each has an index of its own, so that nothing but the bucket knows of both."""
    store, running = run(bucket_home, range(3))
    other = Home(bucket_home.folder.with_name("other"), bucket_home.log)
    other.folder.mkdir()
    shutil.copy(bucket_home.folder / "keys.db", other.folder / "keys.db")
    taken, going_on = run(other, range(5))
    newest = taken.latest_checkpoint()
    if late == "append":
        with pytest.raises(StoreLocked):
            running.append(signed_receipt(9)).result()
        with pytest.raises(Stopped):
            running.append(signed_receipt(10))
    elif late == "probe":
        with pytest.raises(StoreLocked):
            store.probe()
    else:
        head = sign_checkpoint(Checkpoint(ORIGIN, 4, bytes(32)), KEYS["log"])
        with pytest.raises(StoreLocked):
            store.record_checkpoint(4, head)
    for each in (running, store):
        each.close()
    assert going_on.append(signed_receipt(5)).result().index == 5
    assert newest != taken.latest_checkpoint()
    for each in (going_on, taken):
        each.close()
    report = verify_log(TiledTree(TileFolder(bucket_home.copied(other.folder / "copy")), 6).entries(0), None, TRUSTED)
    assert (report.ok, report.size) == (True, 6)


def test_two_writers_that_start_at_once_make_one_log(bucket_home: Home) -> None:
    places = [TiledLog.open(Bucket.open(bucket_home.log)) for _ in range(2)]
    places[0].settle()
    with pytest.raises(StoreLocked):
        places[1].settle()
    for place in places:
        place.close()


def test_a_bucket_that_is_not_there_is_said_to_be_missing(bucket_home: Home) -> None:
    with pytest.raises(StoreError, match="NoSuchBucket"):
        Bucket.open(bucket_home.log.replace("s3://test", "s3://no-test"))


@pytest.fixture
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "JOURNAL_BYTES", 200_000)


@pytest.mark.usefixtures("small_journals")
def test_journals_go_once_their_files_are_on_the_disk(home: Home, tmp_path: Path) -> None:
    cut = killed(home, range(800), tmp_path / "cut")
    journals = sorted((cut.folder / "log").glob("journal-*"))
    assert 0 < sum(path.stat().st_size for path in journals) < 1_000_000
    assert int(journals[0].name.removeprefix("journal-")) > 0
    check(cut, 800)
    with closing(SqlEntryStore.open_for_reading(cut.folder / "index.db", log=cut.log)) as store:
        assert (store.size(), len(list(entries_from(store)))) == (800, 800)
    entries = cut.folder / "log/tile/entries"
    assert not [path for path in os.listdir(entries) if path in ("000.p", "001.p", "002.p")]
