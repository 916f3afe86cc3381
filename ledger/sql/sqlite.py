"""SQLite with the durability that the ledger promises: WAL, `synchronous=FULL`, explicit transactions, one writer."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Self

from sqlalchemy import URL, Connection, Engine, create_engine, event

from ledger.durable_file import make_folder
from ledger.errors import NotFound, StoreError, StoreLocked, StoreReplaced
from ledger.sql.database import store_errors

BUSY_SECONDS = 10
"""The time that a read waits while another connection checkpoints the WAL. The writer never waits: it holds the writer
lock.
"""

_CACHE_KIB = 32 * 1024
"""Pages that the writer keeps in memory. Digests and ids are spread over their indexes; 32 MiB hold the indexes of 10^6
entries.
"""

_PAGE_BYTES = 16 * 1024
"""The size of a new database's pages. An entry takes 2 to 3 KiB, so pages of 4 KiB would be half empty."""

_WAL_PAGES = 1000
"""Pages after which the WAL goes into the database: with fewer, pages are copied more often."""


class SqliteDatabase:
    """`database.Database` on one file. Made by `open` or `open_for_reading`."""

    def __init__(self, path: Path, reader: Engine, writer: Engine | None, lock: _WriterLock | None) -> None:
        self.name = str(path)
        self._idle: deque[Any] = deque()  # the driver's connections that `rows` has read by
        self._reader = reader
        self._writer = writer
        self._lock = lock
        self._turn = Lock()
        self._kept: Connection | None = None
        self._opened: dict[str, tuple[int, int]] = {}  # device and inode of each file
        self._size = 0  # bytes of the database, which never shrinks: nothing vacuums it
        self.lock_losses = 0

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open for writing; the file is created if missing, with mode 0600. Raises StoreLocked, StoreError."""
        try:
            make_folder(path.parent)
        except OSError as error:
            raise StoreError(f"cannot create {path.parent}: {error.strerror}") from None
        _create_private(path)
        lock = _WriterLock(path)
        return cls(path, _engine(path, 8, _prepare_reader), _engine(path, 1, _prepare_writer), lock)

    @classmethod
    def open_for_reading(cls, path: Path) -> Self:
        """Open without the right to write, also while a ledger runs. Raises NotFound if there is no such file."""
        if not path.is_file():
            raise NotFound(f"there is no ledger at {path}")
        return cls(path, _engine(path, 8, _prepare_reader), None, None)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with store_errors(), self._reader.connect() as connection:
            yield connection

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with store_errors():
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._reader.raw_connection()
            found: list[tuple[Any, ...]] = connection.driver_connection.execute(statement, values).fetchall()
            self._idle.append(connection)  # after an error it goes back to the pool
        return found

    def snapshot(self) -> Connection:
        connection = self._reader.connect()
        connection.exec_driver_sql("BEGIN")
        # A flipped bit makes text that is not UTF-8, which the driver would refuse to return.
        _driver(connection).text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        return connection

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[Connection]:
        with self._writing() as connection:
            # In WAL mode FULL syncs the log at every commit; NORMAL leaves that to the next FULL commit.
            _execute(_driver(connection), f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            with connection.begin():
                yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """The writer's connection, for one thread at a time. It is kept, because the pool takes longer than a
        transaction.
        """
        if self._writer is None:
            raise StoreError("this ledger was opened for reading")
        with store_errors(), self._turn:
            self.check_held()
            kept = self._kept or self._writer.connect()
            self._kept = None
            try:
                yield kept
            except BaseException:
                kept.close()
                raise
            self._kept = kept
            if not self._opened:
                # SQLite makes -wal and -shm for the first transaction, and keeps them while it is open.
                self._opened = {path: place for path in self._paths() if (place := _place(path)) is not None}
            self.check_held()  # a write into a deleted file must not be acknowledged

    def check_held(self) -> None:
        for path, place in self._opened.items():
            if _place(path) != place:
                raise StoreReplaced(path, _copies(place))
        if self._opened:
            before, self._size = self._size, _size(self.name)
            if self._size < before:
                raise StoreReplaced(self.name, ())

    def _paths(self) -> tuple[str, ...]:
        return self.name, f"{self.name}-wal", f"{self.name}-shm"

    def scrub(self, table: str, seconds: float) -> bool:
        """Deleted rows are overwritten in place (`secure_delete`); truncating the WAL removes its copies."""
        if self._writer is None:
            return True
        with self._writing() as connection:
            driver = _driver(connection)
            _execute(driver, f"PRAGMA busy_timeout={int(1000 * seconds)}")
            busy, *_ = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            _execute(driver, f"PRAGMA busy_timeout={int(1000 * BUSY_SECONDS)}")
        return not busy

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        for engine in (self._reader, self._writer):
            if engine is not None:
                engine.dispose()
        if self._lock is not None:
            self._lock.release()


class _WriterLock:
    """The lock of the process that writes, held from construction to `release`. The kernel drops it when the process
    dies, so a crash needs no clean-up.
    """

    def __init__(self, guarded: Path) -> None:
        """Raises StoreLocked if another process, or another store in this process, holds the lock.

        The lock is in the folder of the file that links resolve to: two links to one file are one ledger.
        """
        resolved = Path(os.path.realpath(guarded))
        self.path = resolved.with_name(resolved.name + ".lock")
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot open {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreLocked(
                f"{guarded} is open for writing in another process (pid {holder}); stop it first"
            ) from None
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode("ascii"), 0)
        except OSError as error:
            os.close(self._descriptor)
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from None

    def release(self) -> None:
        """Let another process write. Releasing twice changes nothing. The file stays: removing it would race."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _place(path: str | Path) -> tuple[int, int] | None:
    """Device and inode of a file, None if there is no file. Opens no descriptor: closing it would drop SQLite's locks
    on the file.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: str) -> int:
    """Bytes of a file, 0 if there is none."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _copies(place: tuple[int, int]) -> list[str]:
    """The path under which Linux shows a file that this process has open, even if its name is gone."""
    try:
        descriptors = [Path(f"/proc/{os.getpid()}/fd/{number}") for number in os.listdir("/proc/self/fd")]
    except OSError:
        return []
    return [str(each) for each in descriptors if _place(each) == place][:1]


def _create_private(path: Path) -> None:
    """Create a file with mode 0600, because prompts and outputs are in it. SQLite gives -wal and -shm the same mode. An
    existing file keeps its own, and is not opened: closing it would drop SQLite's locks on it.
    """
    try:
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}") from None


def _engine(path: Path, pool_size: int, prepare: Any) -> Engine:
    overflow = 0 if pool_size == 1 else -1
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        pool_size=pool_size,
        max_overflow=overflow,
        connect_args={"timeout": BUSY_SECONDS},
    )
    event.listen(engine, "connect", prepare)
    if prepare is _prepare_writer:
        event.listen(engine, "begin", _begin_immediate)
    return engine


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _prepare_writer(connection: Any, _record: object) -> None:
    _execute(
        connection,
        f"PRAGMA page_size={_PAGE_BYTES}",
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "PRAGMA secure_delete=ON",
        f"PRAGMA cache_size=-{_CACHE_KIB}",
        f"PRAGMA wal_autocheckpoint={_WAL_PAGES}",
    )


def _prepare_reader(connection: Any, _record: object) -> None:
    _execute(connection, "PRAGMA query_only=ON")


def _execute(connection: Any, *pragmas: str) -> None:
    connection.isolation_level = None  # the driver must not open transactions of its own: we say BEGIN
    for pragma in pragmas:
        connection.execute(pragma).close()


def _begin_immediate(connection: Connection) -> None:
    _driver(connection).execute("BEGIN IMMEDIATE").close()
