"""A database, opened by its path or URL."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL, Table, inspect, make_url
from sqlalchemy.exc import ArgumentError

from ledger.errors import StoreError
from ledger.sql.database import Database
from ledger.sql.postgres import PostgresDatabase
from ledger.sql.sqlite import SqliteDatabase
from ledger.sql.versions import GUARD_AND_KEYS, check_version, make_guard_or_keys


def connect(target: Path | str, purpose: str) -> Database:
    """Open a database as its only writer: an SQLite file (a path or `sqlite:///…`) or `postgresql+psycopg://…`.

    `purpose` names the writer's lock, because ledger and guard may share a PostgreSQL database. Raises StoreLocked,
    StoreError.
    """
    url = _url(target)
    if url.database and url.drivername == "sqlite":
        return SqliteDatabase.open(Path(url.database))
    return PostgresDatabase.open(url, purpose)


def connect_for_reading(target: Path | str) -> Database:
    """Open a database without the right to write. Raises NotFound if there is no such file, StoreError."""
    url = _url(target)
    if url.database and url.drivername == "sqlite":
        return SqliteDatabase.open_for_reading(Path(url.database))
    return PostgresDatabase.open_for_reading(url)


def connect_with(target: Path | str, purpose: str, version: Table) -> Database:
    """`connect` to the database of a guard or of content keys, whose tables are made if missing; `version` is their
    table of versions. Raises StoreLocked, OtherRevision, StoreError.
    """
    database = connect(target, purpose)
    try:
        with database.writing() as connection:
            make_guard_or_keys(connection, version, database.name)
    except StoreError:
        database.close()
        raise
    return database


def connect_for_reading_with(target: Path | str, version: Table, table: Table, otherwise: str) -> Database:
    """`connect_for_reading` to the database of a guard or of content keys. Raises NotFound, OtherRevision, StoreError;
    the message of a database without `table` ends with `otherwise`.
    """
    database = connect_for_reading(target)
    try:
        with database.reading() as connection:
            if not inspect(connection).has_table(table.name):
                raise StoreError(f"{database.name} {otherwise}")
            check_version(connection, version, GUARD_AND_KEYS, database.name)
    except StoreError:
        database.close()
        raise
    return database


def _url(target: Path | str) -> URL:
    if isinstance(target, Path):
        return URL.create("sqlite", database=str(target))
    try:
        url = make_url(target)
    except (ArgumentError, ValueError):  # not repeated: it may hold a password
        raise StoreError("the database URL cannot be read; expected sqlite:///PATH or postgresql+psycopg://…") from None
    if url.drivername not in ("sqlite", "postgresql+psycopg") or not url.database:
        raise StoreError("expected a database URL like sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE")
    if url.drivername != "sqlite" and find_spec("psycopg") is None:
        raise StoreError("a ledger on PostgreSQL needs psycopg: install kolm-serve's extra postgres")
    return url
