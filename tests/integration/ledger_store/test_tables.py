"""What was written is not changed, and a database of another version is left alone."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from ledger.errors import StoreError
from ledger.log.sequencer import Sequencer
from ledger.sql.schema import REVISION
from ledger.sql.store import SqlEntryStore
from tests.postgres import url_of
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, retention, signed, signed_receipt

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
        sequencer.append(signed(retention(30))).result()


@pytest.mark.parametrize(
    "statement",
    [
        *REWRITES,
        "INSERT OR REPLACE INTO leaves SELECT \"index\", 'a', entry, x'07', chain FROM leaves WHERE \"index\" = 1",
        "INSERT OR REPLACE INTO leaves SELECT 3, kind, entry, envelope_digest, chain FROM leaves WHERE \"index\" = 2",
        "INSERT INTO leaves SELECT 7, kind, entry, x'07', chain FROM leaves WHERE \"index\" = 0",
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


@pytest.mark.parametrize(
    "change", [f"UPDATE ledger_version SET revision = {REVISION + 1}", "DROP TABLE ledger_version"]
)
def test_tables_of_another_version_are_left_as_they_are(postgres_url: str, tmp_path: Path, change: str) -> None:
    for url in (postgres_url, f"sqlite:///{tmp_path / 'ledger.db'}"):
        fill(url)
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(change))
        with pytest.raises(StoreError):
            SqlEntryStore.open(url)
        with pytest.raises(StoreError):
            SqlEntryStore.open_for_reading(url)
        with engine.begin() as connection:
            assert connection.execute(text("SELECT count(*) FROM leaves")).scalar() == 3
        engine.dispose()
