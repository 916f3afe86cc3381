"""Databases of earlier versions are brought up to date, and the tables that come out are those that the code knows."""

import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from ledger.audit.log_verification import verify_log
from ledger.encoding.cid import cid
from ledger.errors import ChainError, StoreError
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.sequencer import Sequencer
from ledger.log.store import entries_from
from ledger.sql.schema import metadata
from ledger.sql.store import SqlEntryStore
from tests.postgres import url_of
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, at, content, receipt, receipt_id, signed_receipt

VECTORS = Path(__file__).parents[2] / "vectors"


@pytest.fixture(params=[1, 2, 3])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A database as an earlier version wrote it: four receipts, a verdict, a halt."""
    return of_schema(request.param, tmp_path)


def of_schema(number: int, directory: Path) -> Path:
    with closing(sqlite3.connect(directory / "ledger.db")) as connection:
        connection.executescript((VECTORS / f"ledger_schema_{number}.sql").read_text(encoding="utf-8"))
    return directory / "ledger.db"


def test_a_database_of_the_first_schema_is_brought_up_to_date_and_goes_on(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        before = connection.execute('SELECT entry FROM leaves ORDER BY "index"').fetchall()
        (note,) = connection.execute("SELECT note FROM checkpoints ORDER BY size DESC LIMIT 1").fetchone()
    keys = old.with_name("keys.db")
    with closing(SqlEntryStore.open(old, keys)) as store:
        assert [(entry,) for entry in entries_from(store)] == before
        assert store.latest_checkpoint() == note
        assert [store.content(index) for index in range(4)] == [content(0), content(1), content(2), None]
        with closing(Sequencer(store, KEYS["log"], TRUSTED, ORIGIN)) as sequencer:
            assert sequencer.board.latest().halts.epoch == 1
            assert [sequencer.append(signed_receipt(number)).result().index for number in (2, 4)] == [2, 6]
        report = verify_log(entries_from(store), store.latest_checkpoint(), TRUSTED, ORIGIN)
        assert (report.ok, report.size) == (True, 7)
    SqlEntryStore.open(old, keys).close()  # once is enough


def test_contents_in_clear_are_sealed_and_no_byte_of_them_stays(old: Path) -> None:
    salts = [content(number).prompt_salt for number in range(3)]
    assert all(salt in old.read_bytes() for salt in salts)
    with pytest.raises(StoreError, match="contents of an older version"):
        SqlEntryStore.open(old)
    keys = old.with_name("keys.db")
    with closing(SqlEntryStore.open(old, keys)) as store:
        assert not any(salt in path.read_bytes() for path in old.parent.iterdir() for salt in salts)
        assert [store.content(index) for index in range(4)] == [content(0), content(1), content(2), None]


def test_contents_in_clear_are_sealed_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    fill(postgres_url, tmp_path / "keys.db")
    engine = create_engine(postgres_url)
    with engine.begin() as connection:  # back to the tables of before
        connection.execute(text("DROP TABLE contents"))
        connection.execute(
            text(
                "CREATE TABLE contents (receipt_index BIGINT PRIMARY KEY, prompt_salt BYTEA NOT NULL, "
                "prompt_token_ids BYTEA NOT NULL, output_salt BYTEA NOT NULL, output_token_ids BYTEA NOT NULL)"
            )
        )
        for number in range(2):
            kept = content(number)
            ids = [struct.pack(f"<{len(each)}I", *each) for each in (kept.prompt_token_ids, kept.output_token_ids)]
            row = {"at": number, "ps": kept.prompt_salt, "p": ids[0], "os": kept.output_salt, "o": ids[1]}
            connection.execute(text("INSERT INTO contents VALUES (:at, :ps, :p, :os, :o)"), row)
        connection.execute(text("UPDATE alembic_version SET version_num = '0003'"))
    with closing(SqlEntryStore.open(postgres_url, tmp_path / "keys.db")) as store:
        assert [store.content(index) for index in range(2)] == [content(0), content(1)]
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_receipts_of_before_are_found_by_what_was_no_column_then(old: Path) -> None:
    with closing(SqlEntryStore.open(old, old.with_name("keys.db"))) as store:
        for narrow in (
            ReceiptFilter(head_cid=cid(b"head")),
            ReceiptFilter(adapter_cid=cid(b"adapter")),
            ReceiptFilter(issued_from=at(3)),
            ReceiptFilter(commitment=receipt(3).prompt.commitment),
            ReceiptFilter(commitment=receipt(3).output.commitment),
        ):
            assert [row.index for row in store.receipts(narrow, -1, 10)] == [3]
        assert [row.index for row in store.receipts(ReceiptFilter(outcome="DEVIATION"), -1, 10)] == [1]
        assert store.indexes_of_receipts([receipt_id(3)]) == {receipt_id(3): 3}


def test_a_reader_of_an_old_database_is_told_how_to_bring_it_up_to_date(old: Path) -> None:
    with pytest.raises(StoreError, match="older version; start the ledger once"):
        SqlEntryStore.open_for_reading(old)
    SqlEntryStore.open(old, old.with_name("keys.db")).close()
    SqlEntryStore.open_for_reading(old).close()


@pytest.mark.parametrize("old", [1, 2], indirect=True)
def test_a_migration_that_fails_leaves_the_old_database_as_it_was(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("DROP TRIGGER leaves_refuse_update")
        connection.execute("UPDATE leaves SET entry = x'00' WHERE \"index\" = 2")
        before = list(connection.iterdump()), connection.execute("PRAGMA user_version").fetchone()
    for _ in range(2):
        with pytest.raises(ChainError, match="entry 2: is damaged"):
            SqlEntryStore.open(old, old.with_name("keys.db"))
    with closing(sqlite3.connect(old)) as connection:
        assert (list(connection.iterdump()), connection.execute("PRAGMA user_version").fetchone()) == before


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "schema 1", "schema 2", "schema 3"])
def test_migrations_make_exactly_the_tables_that_the_code_knows(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if engine == "postgres":
        url = target = str(request.getfixturevalue("postgres_url"))
    else:
        target = tmp_path / "ledger.db" if engine == "sqlite" else of_schema(int(engine[-1]), tmp_path)
        url = f"sqlite:///{target}"
    SqlEntryStore.open(target, tmp_path / "keys.db").close()
    database = create_engine(url)
    with database.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    database.dispose()


@pytest.mark.parametrize("damage", ["prompt_token_ids = x'0102'", "output_salt = x'01'", "prompt_salt = 'text'"])
def test_a_content_that_cannot_be_sealed_leaves_the_old_database_as_it_was(old: Path, damage: str) -> None:
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute(f"UPDATE contents SET {damage} WHERE receipt_index = 1")
        before = list(connection.iterdump())
    with pytest.raises(StoreError, match="the content of entry 1 is damaged"):
        SqlEntryStore.open(old, old.with_name("keys.db"))
    with closing(sqlite3.connect(old)) as connection:
        assert list(connection.iterdump()) == before


REWRITES = (
    "UPDATE leaves SET kind = kind",
    "DELETE FROM leaves",
    "UPDATE checkpoints SET note = note",
    "DELETE FROM checkpoints WHERE size = 0",
)


def fill(target: Path | str, keys: Path | None = None) -> None:
    with (
        closing(SqlEntryStore.open(target, keys)) as store,
        closing(Sequencer(store, KEYS["log"], TRUSTED, ORIGIN)) as sequencer,
    ):
        for number in range(2):
            sequencer.append(signed_receipt(number)).result()


@pytest.mark.parametrize(
    "statement",
    [
        *REWRITES,
        """INSERT OR REPLACE INTO leaves SELECT "index", 'a', entry, envelope_digest FROM leaves WHERE "index" = 1""",
        "INSERT OR REPLACE INTO leaves SELECT 2, kind, entry, envelope_digest FROM leaves WHERE \"index\" = 0",
        "INSERT INTO leaves SELECT 7, kind, entry, x'07' FROM leaves WHERE \"index\" = 0",
        "INSERT OR REPLACE INTO checkpoints SELECT 2, x'00'",
        "INSERT INTO fence VALUES (1, 1)",
    ],
)  # fmt: skip
def test_sqlite_refuses_to_change_what_was_written(tmp_path: Path, statement: str) -> None:
    fill(tmp_path / "ledger.db")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        before = list(connection.iterdump())
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
        connection.commit()
        assert list(connection.iterdump()) == before


def test_postgresql_refuses_to_change_what_was_written(postgres_url: str) -> None:
    fill(postgres_url)
    engine = create_engine(postgres_url)
    for statement in (*REWRITES, "TRUNCATE leaves", "TRUNCATE checkpoints, leaves"):
        with engine.connect() as connection, pytest.raises(DBAPIError, match="append-only"):
            connection.execute(text(statement))
    engine.dispose()


def test_a_cluster_that_was_made_without_a_locale_holds_a_log_too(postgres_cluster: Path, tmp_path: Path) -> None:
    admin = create_engine(url_of(postgres_cluster, "postgres"), isolation_level="AUTOCOMMIT")
    with closing(admin.connect()) as connection:
        ascii_only = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        connection.execute(text(f"CREATE DATABASE without_locale {ascii_only}"))
        try:
            url = url_of(postgres_cluster, "without_locale")
            with closing(SqlEntryStore.open(url, tmp_path / "keys.sqlite3")) as store:
                assert store.size() == 0
        finally:
            connection.execute(text("DROP DATABASE without_locale WITH (FORCE)"))
    admin.dispose()
