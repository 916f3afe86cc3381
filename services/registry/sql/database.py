"""Connections to the catalogue's database, and what it says when it fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from sqlalchemy import Connection, Engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from services.registry.sql.schema import metadata
from services.runtime.database import open_database
from services.runtime.errors import Unavailable
from services.runtime.process import Outage

_log = logging.getLogger(__name__)
_TABLES_LOCK = 7306001
_BLOBS_LOCK = 7306002
"""The key of PostgreSQL's lock in `lock_blobs`."""
_NAMES_LOCK = 7306003
"""The first key of those in `lock_name`."""


class Database:
    """Transactions, from any thread. SQLite takes its one writer at the beginning, so that none has to be repeated."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # SQLite's own lock between threads is a sleeping loop; ours is a queue.
        self._writer = threading.Lock() if engine.dialect.name == "sqlite" else nullcontext()
        self._outage = Outage(_log, "use the catalogue's database", SQLAlchemyError)

    @classmethod
    def open(cls, url: str) -> Database:
        """`sqlite:///path` or `postgresql+psycopg://…`, its tables made where missing.

        Raises SQLAlchemyError, OSError.
        """
        return cls(open_database(make_url(url), metadata, _TABLES_LOCK))

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that commits where the block ends and rolls back where it raises. Raises Unavailable."""
        with self._writer, self._errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads. Raises Unavailable."""
        with (
            self._errors(),
            self._engine.connect().execution_options(reads_only=True) as connection,
            connection.begin(),
        ):
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with self._outage:
            yield
            return
        raise Unavailable("the registry's database failed; try again", reason="CATALOGUE_UNAVAILABLE")


def lock_blobs(connection: Connection, *, alone: bool) -> None:
    """For the rest of the transaction, a remover of blobs is alone; others are together with their like.

    SQLite has one writer, who is alone anyway.
    """
    if connection.dialect.name == "postgresql":
        lock = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
        connection.execute(text(f"SELECT {lock}({_BLOBS_LOCK})"))


def lock_name(connection: Connection, name: str) -> None:
    """For the rest of the transaction, nobody else publishes under this name. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        lock = text("SELECT pg_advisory_xact_lock(:lock, hashtext(:name))")
        connection.execute(lock, {"lock": _NAMES_LOCK, "name": name})
