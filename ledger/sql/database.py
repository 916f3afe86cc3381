"""The contract of a database engine under a store, implemented by `sqlite` and `postgres`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ledger.errors import StoreDamaged, StoreError


class Database(Protocol):
    """Transactions on one database. Every failure is raised as a StoreError."""

    name: str
    """The database's name in messages: a path, or a URL without its password."""

    def reading(self) -> AbstractContextManager[Connection]:
        """A connection for statements that cannot write; each sees the last commit before it began. From any thread,
        and from several at the same time.
        """
        ...

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of one reading statement in the driver's SQL, with "?" for each value. It bypasses SQLAlchemy, which
        takes longer than SQLite; otherwise as in `reading`.
        """
        ...

    def snapshot(self) -> Connection:
        """A connection whose reads all see one moment, until it is closed. It also returns damaged text."""
        ...

    def writing(self, *, durable: bool = True) -> AbstractContextManager[Connection]:
        """A transaction that commits at the end of the block and rolls back if the block raises. One at a time.

        A durable transaction survives a power cut once it has returned. Another one survives a crash of the process; a
        power cut may take all of it, with all later ones. Raises StoreError if the database was opened for reading.
        """
        ...

    @property
    def lock_losses(self) -> int:
        """How often the writer's lock was lost and taken again."""
        ...

    def check_held(self) -> None:
        """Raises StoreReplaced if a file is not the opened one any more, StoreLocked if another process has taken the
        writer's lock, StoreError. Takes no longer than a query.
        """
        ...

    def scrub(self, table: str, seconds: float) -> bool:
        """Overwrite the bytes of rows deleted from a table, if the database can. Returns False if a reader's open
        transaction keeps them for `seconds`, in which there are no writes.
        """
        ...

    def close(self) -> None:
        """Release connections and locks. Closing twice changes nothing."""
        ...


def run(connection: Connection, statement: str, *values: Any) -> Any:
    """The driver's cursor after a statement in its own SQL, with "?" for each value. Bypasses SQLAlchemy on SQLite."""
    if connection.dialect.name == "sqlite":
        return connection.connection.driver_connection.execute(statement, values)  # type: ignore[union-attr]
    return connection.exec_driver_sql(statement.replace("?", "%s"), values)


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise the errors of the database as StoreError."""
    try:
        yield
    # sqlite3.Error: from a pragma, which goes to the driver. OverflowError: an index beyond 64 bits.
    # UnicodeDecodeError: SQLite's message about a damaged schema quotes its bytes.
    except (SQLAlchemyError, sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        cause = getattr(error, "orig", None) or error
        damaged = isinstance(error, UnicodeDecodeError) or _names_damage(cause)
        family = StoreDamaged if damaged else StoreError
        raise family(f"the database failed: {str(cause).strip()}") from error


def _names_damage(cause: BaseException) -> bool:
    """Whether an error is SQLITE_CORRUPT or SQLITE_NOTADB; the upper bytes of extended codes are ignored."""
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
