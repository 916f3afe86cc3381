"""The database of a service, SQLite or PostgreSQL by its URL, with the tables of this version."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event, text

_BUSY_SECONDS = 30.0
_WAIT_SECONDS = 0.05


def open_database(url: URL, tables: MetaData, lock: int) -> Engine:
    """The tables are made where they are missing; `lock` is the number of PostgreSQL's lock for it.

    On SQLite a transaction takes the one writer as it begins, unless it has the execution option `reads_only`.

    Raises SQLAlchemyError, OSError.
    """
    if url.get_backend_name() == "sqlite":
        if url.database:
            Path(url.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
    else:
        engine = create_engine(url, pool_pre_ping=True)
    try:
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":  # several processes may start at once
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": lock})
            tables.create_all(connection)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _prepare(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not open transactions of its own: we say BEGIN
    _turn_to_wal(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _turn_to_wal(connection: Any) -> None:
    """SQLite does not wait by itself for another process that turns the same new file to WAL."""
    patience = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError:
            if time.monotonic() > patience:
                raise
            time.sleep(_WAIT_SECONDS)
        else:
            return


def _begin(connection: Connection) -> None:
    reads_only = connection.get_execution_options().get("reads_only", False)
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")
