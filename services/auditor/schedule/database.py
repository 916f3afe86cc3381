"""The schedule's database: SQLite by default, PostgreSQL by URL, with the tables of this version."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from services.auditor.audit_error import ScheduleError
from services.auditor.schedule.tables import REVISION, VERSION_TABLE
from services.runtime.migration import ForeignDatabase, Migrations

_BUSY_SECONDS = 30
_WAIT_SECONDS = 0.05
_MIGRATIONS = Migrations(Path(__file__).parent / "migrations", REVISION, VERSION_TABLE, lock=0x6B6F6C6D)


def open_database(url: str) -> Engine:
    """An engine whose tables are there and up to date; `sqlite:///PATH` or `postgresql+psycopg://…`.

    On SQLite every transaction is BEGIN IMMEDIATE: leases are taken one after the other, by all processes on the
    file. Raises ScheduleError, which never repeats the URL: it may hold a password.
    """
    engine = _engine(url)
    try:
        with engine.begin() as connection:
            _MIGRATIONS.run(connection)
    except (SQLAlchemyError, OSError) as error:
        engine.dispose()
        cause = getattr(error, "orig", None) or error
        raise ScheduleError(f"cannot open the auditor's schedule: {str(cause).strip()}") from error
    except ForeignDatabase as error:
        engine.dispose()
        raise ScheduleError(f"cannot open the auditor's schedule: {error}") from error
    return engine


def sqlite_url(path: Path) -> str:
    """The URL of a file."""
    return f"sqlite:///{path.absolute()}"


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ScheduleError("--database: expected sqlite:///PATH or postgresql+psycopg://…") from None
    if parsed.drivername == "postgresql+psycopg":
        return create_engine(parsed, pool_pre_ping=True)
    if parsed.drivername != "sqlite" or not parsed.database:
        raise ScheduleError(f"--database: expected sqlite:///PATH or postgresql+psycopg://…, not {parsed.drivername}")
    Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, connect_args={"timeout": _BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not open transactions of its own: we say BEGIN
    _turn_to_wal(connection)
    connection.execute("PRAGMA synchronous=NORMAL").close()  # a lost lease is examined again


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


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
