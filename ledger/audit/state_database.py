"""A connection to a database of SQLite, whose errors are StoreErrors: a verifier's temporary one, or a monitor's."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ledger.errors import FormatError, StoreError


class StateDatabase:
    """A connection whose errors are StoreErrors that name the state. Not thread-safe."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        """`name` is the state's name in messages."""
        self.connection = connection
        self._name = name

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of the database, and errors from damaged values in it, to StoreError."""
        try:
            yield
        except (sqlite3.Error, OSError, FormatError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreError(f"{self._name} cannot be used: {error}") from error

    def row(self, query: str, *values: object) -> tuple[Any, ...] | None:
        with self.errors():
            row: tuple[Any, ...] | None = self.connection.execute(query, values).fetchone()
        return row

    def write(self, statement: str, *values: object) -> None:
        with self.errors():
            self.connection.execute(statement, values)
