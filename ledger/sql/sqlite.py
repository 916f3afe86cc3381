"""SQLite engines with the durability that the ledger promises: WAL, `synchronous=FULL`, explicit transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

BUSY_SECONDS = 10
"""How long a read waits where somebody else checkpoints the WAL. The writer never waits: it holds the writer lock."""


def writing_engine(path: Path) -> Engine:
    """One connection, each transaction `BEGIN IMMEDIATE`, on disk when COMMIT returns.

    `synchronous=FULL` in WAL mode syncs the log at every commit, so a power cut after COMMIT loses nothing, and one
    before it leaves nothing of the batch.
    """
    engine = create_engine(_url(path), pool_size=1, max_overflow=0, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_writer)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def reading_engine(path: Path) -> Engine:
    """Connections that cannot write, one a concurrent reader; each read sees the last commit before it began."""
    engine = create_engine(_url(path), pool_size=8, max_overflow=-1, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_reader)
    event.listen(engine, "begin", _begin_deferred)
    return engine


def _url(path: Path) -> URL:
    return URL.create("sqlite", database=str(path))


def _prepare_writer(connection: Any, _record: object) -> None:
    _execute(connection, "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")


def _prepare_reader(connection: Any, _record: object) -> None:
    _execute(connection, "PRAGMA query_only=ON")


def _execute(connection: Any, *pragmas: str) -> None:
    connection.isolation_level = None  # the driver must not open transactions of its own: we say BEGIN
    for pragma in pragmas:
        connection.execute(pragma).close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_deferred(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
