"""The contract of a database engine under a store; SQLite and PostgreSQL each keep it in a file of their own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ledger.errors import StoreDamaged, StoreError


class Database(Protocol):
    """Transactions on one database. Every failure in them is raised as a StoreError."""

    name: str
    """The database in messages: a path, or a URL without its password."""

    def reading(self) -> AbstractContextManager[Connection]:
        """Statements that cannot write; each sees the last commit before it began. From any thread, many at once."""
        ...

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of one statement of the driver's that cannot write, "?" for each value; without SQLAlchemy, which
        takes longer than SQLite does. Otherwise as within `reading`.
        """
        ...

    def snapshot(self) -> Connection:
        """A connection whose reads all see one moment, until it is closed. It also returns damaged text."""
        ...

    def writing(self, *, durable: bool = True) -> AbstractContextManager[Connection]:
        """A transaction that commits where the block ends and rolls back where it raises. One at a time.

        When a durable one has returned, it survives a power cut. One that is not durable survives a crash of
        the process; a power cut may take it, whole and with all later ones. Raises StoreError where the
        database was opened for reading.
        """
        ...

    @property
    def lock_losses(self) -> int:
        """How often the writer's lock was lost and taken again."""
        ...

    def check_held(self) -> None:
        """Raises StoreReplaced where a file is not the one that was opened, StoreLocked where another process has the
        writer's lock by now, StoreError. Takes no longer than a question to the database.
        """
        ...

    def scrub(self, table: str) -> None:
        """Overwrite the bytes of rows deleted from a table, as far as the database can."""
        ...

    def close(self) -> None:
        """Release connections and locks. Closing twice changes nothing."""
        ...


def run(connection: Connection, statement: str, *values: Any) -> Any:
    """The driver's cursor after a statement of its own, "?" for each value, past SQLAlchemy where that is SQLite's."""
    if connection.dialect.name == "sqlite":
        return connection.connection.driver_connection.execute(statement, values)  # type: ignore[union-attr]
    return connection.exec_driver_sql(statement.replace("?", "%s"), values)


@contextmanager
def store_errors() -> Iterator[None]:
    """Raises the errors of the database as StoreError."""
    try:
        yield
    # sqlite3.Error: of a pragma, which goes to the driver. OverflowError: an index beyond 64 bits. UnicodeDecodeError:
    # SQLite's words about a damaged schema quote its bytes.
    except (SQLAlchemyError, sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        cause = getattr(error, "orig", None) or error
        damaged = isinstance(error, UnicodeDecodeError) or _names_damage(cause)
        family = StoreDamaged if damaged else StoreError
        raise family(f"the database failed: {str(cause).strip()}") from error


def _names_damage(cause: BaseException) -> bool:
    """SQLITE_CORRUPT and SQLITE_NOTADB, whose extended codes hold more in their upper bytes."""
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
