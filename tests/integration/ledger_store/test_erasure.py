"""An erasure takes the content of its receipt with it: in the same transaction, down to the bytes of the file."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread, current_thread
from typing import Self

import pytest
from sqlalchemy import Connection, text

from ledger.audit.log_verification import verify_log
from ledger.errors import StoreError
from ledger.fsck import Depth, fsck
from ledger.log.reader import LedgerReader
from ledger.log.sequencer import Sequencer
from ledger.log.store import Batch, EntryStore, Record
from ledger.sql.contents import SqlContentKeys
from ledger.sql.inspection import SqlInspection
from ledger.sql.sqlite import SqliteDatabase
from ledger.sql.store import SqlEntryStore
from tests.integration.ledger_store.writing import database
from tests.unit.ledger.builders import (
    KEYS,
    ORIGIN,
    TRUSTED,
    at,
    content,
    erasure,
    expiry,
    receipt_id,
    signed,
    signed_receipt,
)
from tests.unit.ledger.log.memory_store import MemoryEntryStore, MemoryGuard


def append(store: EntryStore, *envelopes: bytes) -> Sequencer:
    sequencer = Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, guard=MemoryGuard())
    for number, envelope in enumerate(envelopes):
        sequencer.append(envelope, content(number) if number < 2 else None).result(timeout=60)
    return sequencer


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
def test_the_content_is_gone_once_the_erasure_is_there_and_every_proof_holds(kind: str, tmp_path: Path) -> None:
    store = SqlEntryStore.open(tmp_path / "ledger.db", tmp_path / "keys.db") if kind == "sqlite" else MemoryEntryStore()
    sequencer = append(store, signed_receipt(0), signed_receipt(1), signed(erasure(1, 1)))
    assert [store.content(0), store.content(1)] == [content(0), None]
    assert verify_log(store.entries(0, 10), store.latest_checkpoint(), TRUSTED).ok
    # The same receipt with its content again is the same entry, and its content does not come back.
    assert sequencer.append(signed_receipt(1), content(1)).result(timeout=60).index == 1
    assert store.content(1) is None
    assert not LedgerReader(store, sequencer.board).receipt(receipt_id(1)).has_content
    sequencer.close()
    store.close()


def test_the_bytes_of_erased_content_are_in_no_file_of_the_database(tmp_path: Path) -> None:
    store = SqlEntryStore.open(tmp_path / "ledger.db", tmp_path / "keys.db")
    sequencer = append(store, signed_receipt(0), signed_receipt(1))
    salts = (content(1).prompt_salt, content(1).output_salt)
    assert not any(salt in path.read_bytes() for path in tmp_path.iterdir() for salt in salts)
    sealed, kept = (sealed_row(tmp_path, number) for number in (1, 0))
    key, kept_key = (key_of(tmp_path, row) for row in (sealed, kept))
    assert all(in_files(tmp_path, data) for data in (sealed[1], key))
    sequencer.append(signed(erasure(1, 1))).result(timeout=60)
    assert not any(in_files(tmp_path, data) for data in (sealed[1], key))
    assert all(in_files(tmp_path, data) for data in (kept[1], kept_key))
    sequencer.close()
    store.close()


def sealed_row(folder: Path, index: int) -> tuple[bytes, bytes]:
    """The id of a content's key, and the sealed bytes."""
    with closing(sqlite3.connect(folder / "ledger.db")) as connection:
        statement = "SELECT key_id, sealed FROM contents WHERE receipt_index = ?"
        found: tuple[bytes, bytes] = connection.execute(statement, (index,)).fetchone()
        return found


def key_of(folder: Path, row: tuple[bytes, bytes]) -> bytes:
    with closing(SqlContentKeys.open_for_reading(folder / "keys.db")) as keys:
        key = keys.find(row[0])
    assert key is not None
    return key.key


def in_files(folder: Path, data: bytes) -> bool:
    return any(data in path.read_bytes() for path in folder.iterdir() if path.is_file())


def copied_contents(target: Path | str) -> list[tuple[int, bytes, bytes]]:
    """A backup of the contents, as `pg_dump` or a copied file has them."""
    with database(target) as engine, engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT receipt_index, key_id, sealed FROM contents"))]


def restore_contents(target: Path | str, rows: list[tuple[int, bytes, bytes]]) -> None:
    with database(target) as engine, engine.begin() as connection:
        connection.execute(text("DELETE FROM contents"))
        for index, key_id, sealed in rows:
            row = {"at": index, "key": key_id, "sealed": sealed}
            connection.execute(text("INSERT INTO contents VALUES (:at, :key, :sealed)"), row)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_restored_backup_of_the_contents_does_not_bring_back_what_was_erased(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    target = tmp_path / "ledger.db" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
    keys = tmp_path / "keys.db"
    with closing(SqlEntryStore.open(target, keys)) as store:
        append(store, signed_receipt(0), signed_receipt(1)).close()
    backup = copied_contents(target)
    with closing(sqlite3.connect(keys)) as source, closing(sqlite3.connect(tmp_path / "keys.bak")) as copy:
        source.backup(copy)
    with closing(SqlEntryStore.open(target, keys)) as store:
        append(store, signed_receipt(0), signed_receipt(1), signed(erasure(1, 1))).close()
    restore_contents(target, backup)
    with closing(SqlEntryStore.open(target, keys)) as store:
        assert [store.content(0), store.content(1)] == [content(0), None]
    # As documented, a backup of the keys brings it back.
    with closing(SqlEntryStore.open_for_reading(target, tmp_path / "keys.bak")) as store:
        assert store.content(1) == content(1)


def test_a_restored_copy_of_the_whole_database_does_not_bring_back_what_was_erased(tmp_path: Path) -> None:
    target, keys = tmp_path / "ledger.db", tmp_path / "keys.db"
    with closing(SqlEntryStore.open(target, keys)) as store:
        append(store, signed_receipt(0), signed_receipt(1)).close()
    copies = {path.name: path.read_bytes() for path in tmp_path.glob("ledger.db*")}
    with closing(SqlEntryStore.open(target, keys)) as store:
        append(store, signed_receipt(0), signed_receipt(1), signed(erasure(1, 1))).close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    for name, data in copies.items():
        (tmp_path / name).write_bytes(data)
    with closing(SqlEntryStore.open(target, keys)) as store:
        assert store.size() == 2
        assert [store.content(0), store.content(1)] == [content(0), None]


class Failing(SqlContentKeys):
    """Keys whose store fails on a test's command."""

    fails = False

    def destroy(self, key_ids: Sequence[bytes]) -> None:
        if self.fails:
            raise StoreError("the disk of the keys is full")
        super().destroy(key_ids)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_key_that_outlived_its_erasure_is_destroyed_before_the_next_write_or_at_the_next_start(
    restarted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, keys = tmp_path / "ledger.db", tmp_path / "keys.db"
    monkeypatch.setattr("ledger.sql.store.SqlContentKeys", Failing)
    store = SqlEntryStore.open(target, keys)
    sequencer = append(store, signed_receipt(0), signed_receipt(1))
    key = key_of(tmp_path, sealed_row(tmp_path, 1))
    Failing.fails = True
    with pytest.raises(StoreError):
        sequencer.append(signed(erasure(1, 1))).result(timeout=60)
    sequencer.close()
    Failing.fails = False
    assert in_files(tmp_path, key)
    assert [store.expired(expiry(3, 3, issued_before=at(100)), None), store.content(1)] == [[0], None]
    if restarted:
        store.close()
        store = SqlEntryStore.open(target, keys)
    else:
        store.probe()
    assert not in_files(tmp_path, key)
    assert [store.size(), store.content(0), store.content(1)] == [3, content(0), None]
    store.close()


@pytest.mark.parametrize("held", ["keys.db", "ledger.db"])
def test_no_erasure_is_acknowledged_while_a_reader_keeps_the_bytes_of_its_key(
    held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.sql.contents._KEY_SCRUB_SECONDS", 0.1)
    with (
        closing(SqlEntryStore.open(tmp_path / "ledger.db", tmp_path / "keys.db")) as store,
        closing(append(store, signed_receipt(0), signed_receipt(1))) as sequencer,
    ):
        key = key_of(tmp_path, sealed_row(tmp_path, 1))
        with closing(sqlite3.connect(tmp_path / held)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
            for _ in range(2):  # the second time, the log holds the erasure
                answer = sequencer.append(signed(erasure(1, 1)))
                assert isinstance(answer.exception(timeout=8), StoreError) == (held == "keys.db")
        assert sequencer.append(signed(erasure(1, 1))).result(timeout=60).index == 2
        assert sequencer.append(signed_receipt(2)).result(timeout=60).index == 3
        assert not in_files(tmp_path, key)


class Beside:
    """In place of the thread that destroys keys: it is done immediately, or when the result is awaited."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once

    def submit(self, work: Callable[..., None], *arguments: object) -> Self:
        self.result = partial(work, *arguments)
        if self._at_once:
            self.result()
            self.result = partial(list[None])
        return self

    def shutdown(self) -> None:
        pass


@pytest.mark.parametrize("at_once", [True, False])
def test_a_crash_at_any_step_of_an_erasure_leaves_all_of_it_or_nothing(
    at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, copies = tmp_path / "live", list[Path]()
    writing, scrub = SqliteDatabase.writing, SqliteDatabase.scrub

    def opened(folder: Path) -> SqlEntryStore:
        return SqlEntryStore.open(folder / "ledger.db", folder / "keys.db")

    def crash() -> None:
        """Whatever is done later, it is not done in the copy."""
        copies.append(shutil.copytree(live, tmp_path / f"crash-{len(copies)}"))

    @contextmanager
    def and_crash(database: SqliteDatabase, *, durable: bool = True) -> Iterator[Connection]:
        with writing(database, durable=durable) as connection:
            yield connection
            crash()
        crash()

    def scrub_and_crash(database: SqliteDatabase, table: str, seconds: float) -> bool:
        scrubbed = scrub(database, table, seconds)
        crash()
        return scrubbed

    store = opened(live)
    store._contents._threads = Beside(at_once=at_once)  # type: ignore[assignment]
    sequencer = append(store, signed_receipt(0), signed_receipt(1))
    sealed = sealed_row(live, 1)
    key = key_of(live, sealed)
    with monkeypatch.context() as patched:
        patched.setattr(SqliteDatabase, "writing", and_crash)
        patched.setattr(SqliteDatabase, "scrub", scrub_and_crash)
        crash()
        sequencer.append(signed(erasure(1, 1))).result(timeout=60)
    sequencer.close()
    store.close()
    sizes = list[int]()
    for folder in copies:
        with closing(SqlInspection.open(folder / "ledger.db", folder / "keys.db")) as inspection:
            assert fsck(inspection, TRUSTED, Depth.DEEP, origin=ORIGIN).findings == ()
        store = opened(folder)
        sizes.append(store.size())
        erased = sizes[-1] == 3
        assert [store.content(0), store.content(1)] == [content(0), None if erased else content(1)]
        assert any(key in path.read_bytes() for path in folder.rglob("*") if path.is_file()) != erased
        assert in_files(folder, sealed[1]) != erased
        with closing(Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, guard=MemoryGuard())) as again:
            again.append(signed_receipt(2)).result(timeout=60)
        assert verify_log(store.entries(0, 10), store.latest_checkpoint(), TRUSTED).ok
        store.close()
        with closing(sqlite3.connect(folder / "ledger.db")) as connection:
            assert connection.execute("SELECT count(*) FROM contents").fetchone() == (1 if erased else 2,)
    assert sizes == sorted(sizes)
    assert set(sizes) == {2, 3}


def test_an_erasure_that_was_not_written_costs_no_content(tmp_path: Path) -> None:
    target, keys = tmp_path / "ledger.db", tmp_path / "keys.db"
    store = SqlEntryStore.open(target, keys)
    append(store, signed_receipt(0), signed_receipt(1)).close()
    wrong = Record(7, b"", bytes(32), bytes(32), erasure(1, 1))
    with pytest.raises(StoreError):
        store.commit(Batch((wrong,), ()))
    store.close()
    with closing(SqlEntryStore.open(target, keys)) as store:
        assert store.content(1) == content(1)


def test_a_ledger_does_not_start_without_the_keys_of_its_contents(tmp_path: Path) -> None:
    target = tmp_path / "ledger.db"
    with closing(SqlEntryStore.open(target, tmp_path / "keys.db")) as store:
        append(store, signed_receipt(0)).close()
    with pytest.raises(StoreError):
        SqlEntryStore.open(target, tmp_path / "elsewhere.db")
    with closing(SqlEntryStore.open(target, tmp_path / "elsewhere.db", new_keys=True)) as store:
        assert store.content(0) is None
        append(store, signed_receipt(0), signed_receipt(1)).close()
        assert store.content(1) == content(1)


def test_a_ledger_whose_contents_are_all_erased_needs_none_of_their_keys(tmp_path: Path) -> None:
    """A crash came after the key had died, before the emptied row was deleted."""
    target = tmp_path / "ledger.db"
    with closing(SqlEntryStore.open(target, tmp_path / "keys.db")) as store:
        append(store, signed_receipt(0)).close()
    with closing(sqlite3.connect(target)) as database, database:
        database.execute("UPDATE contents SET sealed = x''")
    with closing(SqlEntryStore.open(target, tmp_path / "elsewhere.db")) as store:
        assert [store.size(), store.content(0)] == [1, None]


def test_keys_are_made_beside_the_batches_that_take_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SqlContentKeys.open(tmp_path / "keys.db")) as keys:
        writing, makers = keys._database.writing, list[Thread]()

        def told() -> AbstractContextManager[Connection]:
            makers.append(current_thread())
            return writing()

        monkeypatch.setattr(keys._database, "writing", told)
        taken = [*keys.take(10)]
        assert makers == [current_thread()]
        taken += keys.take(600)
        assert keys._making is not None
        keys._making.result()
        taken += keys.take(1000)
        assert len(makers) > 1
        assert current_thread() not in makers[1:]
        assert len({key.key_id for key in taken}) == 1610
        assert keys.find(taken[-1].key_id) == taken[-1]
