"""Written rows stay unchanged, also in tables of another version, and a full disk of PostgreSQL loses nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, InternalError

from ledger.audit.log_verification import verify_log
from ledger.errors import NotWritten, StoreError
from ledger.log.store import entries_from
from ledger.sql.schema import REVISION
from ledger.sql.store import SqlEntryStore
from tests.integration.ledger_store.writing import database, execute, writing
from tests.postgres import running_cluster, url_of
from tests.unit.ledger.builders import ORIGIN, TRUSTED, content, retention, signed, signed_receipt

REWRITES = (
    "UPDATE leaves SET kind = kind",
    "DELETE FROM leaves",
    "UPDATE checkpoints SET note = note",
    "DELETE FROM checkpoints WHERE size = 0",
)


def fill(target: Path | str, keys: Path | None = None) -> None:
    with writing(target, keys) as (_, sequencer):
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
    for statement in (*REWRITES, "TRUNCATE leaves", "TRUNCATE checkpoints, leaves"):
        with pytest.raises(DBAPIError, match="append-only"):
            execute(postgres_url, statement)


def test_a_cluster_that_was_made_without_a_locale_holds_a_log_too(postgres_cluster: Path, tmp_path: Path) -> None:
    at = url_of(postgres_cluster, "postgres")
    with database(at, isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
        ascii_only = "ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
        connection.execute(text(f"CREATE DATABASE without_locale {ascii_only}"))
        try:
            url = url_of(postgres_cluster, "without_locale")
            with closing(SqlEntryStore.open(url, tmp_path / "keys.sqlite3")) as store:
                assert store.size() == 0
        finally:
            connection.execute(text("DROP DATABASE without_locale WITH (FORCE)"))


@pytest.mark.parametrize(
    "change", [f"UPDATE ledger_version SET revision = {REVISION + 1}", "DROP TABLE ledger_version"]
)
def test_tables_of_another_version_are_left_as_they_are(postgres_url: str, tmp_path: Path, change: str) -> None:
    for url in (postgres_url, f"sqlite:///{tmp_path / 'ledger.db'}"):
        fill(url)
        execute(url, change)
        for opening in (SqlEntryStore.open, SqlEntryStore.open, SqlEntryStore.open_for_reading):  # no lock is left
            with pytest.raises(StoreError, match="revision"):
                opening(url)
        with database(url) as engine, engine.begin() as connection:
            assert connection.execute(text("SELECT count(*) FROM leaves")).scalar() == 3


SEGMENT = 16 * 2**20
"""PostgreSQL's write-ahead log has files of this size. No file may be larger here: a table that would grow beyond it
fails as it does on a full disk.
"""

FILL = text(
    "INSERT INTO contents SELECT -number, '', string_agg(sha256((number * 64 + part)::text::bytea), '') "
    "FROM generate_series(1, 18000) number, generate_series(1, 30) part GROUP BY number"
)


@pytest.mark.usefixtures("postgres_cluster")  # which skips if there is no PostgreSQL
def test_a_full_disk_loses_nothing_and_is_over_once_there_is_room(tmp_path: Path) -> None:
    with running_cluster(within=("prlimit", f"--fsize={SEGMENT}")) as folder:
        url = url_of(folder, "postgres")
        files = tmp_path / "keys.db", tmp_path / "guard.db"
        with writing(url, *files, probe_seconds=0.01) as (store, sequencer):
            sequencer.append(signed_receipt(0), content(0)).result()
            with without_room(url):
                with pytest.raises(NotWritten, match="File too large"):  # a few still fit between those rows
                    [sequencer.append(signed_receipt(number), content(number)).result() for number in range(1, 40)]
                assert sequencer.failure is None
                assert sequencer.append(signed_receipt(0)).result().index == 0  # what is there is still answered
            for number in range(40):
                assert sequencer.append(signed_receipt(number), content(number)).result().index == number
            assert sequencer.takes_entries
            report = verify_log(entries_from(store), store.latest_checkpoint(), TRUSTED, ORIGIN)
            assert report.ok, report.problem
            assert [store.content(number) for number in range(40)] == [content(number) for number in range(40)]


@contextmanager
def without_room(url: str) -> Iterator[None]:
    """Rows of a transaction that has failed for want of room stay until an operator cleans up."""
    with database(url, isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
        with pytest.raises(InternalError, match="File too large"):
            connection.execute(FILL)
        yield
        connection.execute(text("VACUUM contents"))
