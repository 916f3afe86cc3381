"""PostgreSQL 13 or newer (`postgresql+psycopg://`): an advisory lock for one writer, commits that wait for the disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from ledger.errors import StoreError, StoreLocked
from ledger.sql.database import run, store_errors

_log = logging.getLogger(__name__)

# The time to wait for the lock: the server may not have noticed yet that its last holder was killed.
_PATIENCE = "SELECT set_config('lock_timeout', '2s', true), set_config('statement_timeout', '0', true)"
_LOCK = "SELECT pg_advisory_lock(hashtext('kolm'), hashtext(%s))"
_LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL, Appendix A
_UNLOCK = text("SELECT pg_advisory_unlock_all()")
_ASK = text("SELECT 1")

_HOLDER = (
    "SELECT format('pid %%s on %%s, %%s', a.pid, coalesce(host(a.client_addr), 'this host'), a.application_name) "
    "FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database() "
    "AND l.classid::bigint = hashtext('kolm') & 4294967295 AND l.objid::bigint = hashtext(%s) & 4294967295"
)

_DURABLE = "SELECT set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), false)"


class PostgresDatabase:
    """`database.Database` on a PostgreSQL database that belongs to the ledger alone. Made by `open…`."""

    def __init__(self, url: URL, reader: Engine, writer: Engine | None, lock: _Lock | None = None) -> None:
        self.name = url.render_as_string(hide_password=True)
        self._reader = reader
        self._writer = writer
        self._lock = lock

    @classmethod
    def open(cls, url: URL, purpose: str) -> Self:
        """Open for writing. Raises StoreLocked if another session writes for this purpose, StoreError."""
        writer = _engine(url, 1, f"kolm-{purpose}-writer")
        lock = _Lock(url.render_as_string(hide_password=True), purpose)
        event.listen(writer, "connect", _wait_for_the_disk)
        event.listen(writer, "connect", lock.take)
        database = cls(url, _reading_engine(url), writer, lock)
        try:
            database.check_held()
        except StoreError:
            database.close()
            raise
        return database

    @classmethod
    def open_for_reading(cls, url: URL) -> Self:
        """Open without the right to write, also while a ledger runs. A wrong database raises at the first query."""
        return cls(url, _reading_engine(url), None)

    @property
    def lock_losses(self) -> int:
        return 0 if self._lock is None else max(0, self._lock.taken - 1)

    def check_held(self) -> None:
        """Sends a query in the session that holds the lock. If that session is gone, the pool makes another, which
        takes the lock.
        """
        if self._writer is not None:
            with store_errors(), self._writer.connect() as connection:
                connection.execute(_ASK)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with store_errors(), self._reader.begin() as connection:
            yield connection

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.reading() as connection:
            return [tuple(row) for row in run(connection, statement, *values)]

    def snapshot(self) -> Connection:
        return self._reader.connect().execution_options(isolation_level="REPEATABLE READ")

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Connection]:
        if self._writer is None:
            raise StoreError("this ledger was opened for reading")
        with store_errors(), self._writer.begin() as connection:
            if not durable:
                connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            yield connection

    def scrub(self, table: str, seconds: float) -> bool:
        """Vacuum the table, so that dead rows may be overwritten. The operator's WAL archive is not touched."""
        if self._writer is not None:
            with store_errors(), self._writer.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(f"VACUUM {table}")
        return True

    def close(self) -> None:
        if self._writer is not None:
            _unlock(self._writer)
        for engine in (self._reader, self._writer):
            if engine is not None:
                engine.dispose()
        self._writer = None


class _Lock:
    """The advisory lock of one purpose, held by the session that writes. The end of the session ends its transaction,
    so nothing can be committed without the lock. The next session takes the lock first.
    """

    def __init__(self, database: str, purpose: str) -> None:
        self._database = database
        self._purpose = purpose
        self.taken = 0

    def take(self, connection: Any, _record: object) -> None:
        """Take the lock in each new session, beyond the end of a transaction. Raises StoreLocked if another session has
        it.
        """
        try:
            with connection.cursor() as cursor:
                cursor.execute(_PATIENCE)
                cursor.execute(_LOCK, (self._purpose,))
            connection.commit()
        except Exception as error:
            refused = self._refused(connection) if getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE else error
            connection.close()
            raise refused from None
        self.taken += 1
        if self.taken > 1:
            _log.warning(
                "lost the session with the writer's lock of %s (%s); a new session holds it",
                self._database, self._purpose,
            )  # fmt: skip

    def _refused(self, connection: Any) -> StoreLocked:
        connection.rollback()
        with connection.cursor() as cursor:
            cursor.execute(_HOLDER, (self._purpose,))
            (holder,) = cursor.fetchone() or ("unknown",)
        return StoreLocked(f"{self._database} is open for writing by another process ({holder}); stop it first")


def _engine(url: URL, pool_size: int, name: str) -> Engine:
    # Connections are pinged before use: those from before a restart of the database are replaced and fail no batch.
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0 if pool_size <= 2 else -1,
        pool_pre_ping=True,
        connect_args={
            "application_name": name,
            "connect_timeout": 10,
            # A server that vanished without a FIN is noticed within 20 s, also by a connection that only waits for an
            # answer.
            "tcp_user_timeout": 10_000,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 2,
            "client_encoding": "utf8",  # a cluster made without a locale has SQL_ASCII, and answers in bytes
        },
    )


def _wait_for_the_disk(connection: Any, _record: object) -> None:
    """Make commits of the ledger wait at least for the server's own disk, under every default of the server."""
    with connection.cursor() as cursor:
        cursor.execute(_DURABLE)
    connection.commit()


def _reading_engine(url: URL) -> Engine:
    return _engine(url, 8, "kolm-ledger-reader").execution_options(postgresql_readonly=True)


def _unlock(writer: Engine) -> None:
    """Release the lock now: at the end of the session, it would be held for a moment after `close` has returned."""
    # If the session is gone, so is the lock.
    with suppress(SQLAlchemyError, StoreError), writer.connect() as connection:
        connection.execute(_UNLOCK)
        connection.commit()
