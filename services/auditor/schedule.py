"""The schedule that divides work between auditors, in SQL: the same statements on SQLite and PostgreSQL.

Nothing is lost with it: obligations follow from the log.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    and_,
    delete,
    make_url,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from services.auditor.audit_error import ScheduleError
from services.runtime import database

WAITING, LEASED, DEAD = "WAITING", "LEASED", "DEAD"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to examine one receipt until it expires or is given back. `attempts` counts this one."""

    receipt_index: int
    holder: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Job:
    """One line of the schedule. `state` is WAITING (for an attempt), LEASED or DEAD; `until` in Unix seconds."""

    receipt_index: int
    state: str
    label: str
    until: float
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class DrawTurn:
    """The right to draw. `envelope` is a draw that was signed before and may not have reached the log yet."""

    holder: str
    envelope: bytes | None


metadata = MetaData()

jobs = Table(
    "audit_jobs",
    metadata,
    Column("receipt_index", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", String, nullable=True),  # the lease that holds it; NULL where none does
    Column("label", String, nullable=False),  # host and process of the holder, for people
    Column("until", Float(53), nullable=False),  # Unix seconds: end of the lease, or of the pause where none holds it
    Column("attempts", Integer, nullable=False),
    Column("dead", Boolean, nullable=False),
    Column("error", String, nullable=False),
)

draw = Table(
    "audit_draw",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", String, nullable=True),
    Column("until", Float(53), nullable=False),
    Column("envelope", LargeBinary, nullable=True),
)


_TABLES_LOCK = 0x6B6F6C6D


def open_database(url: str) -> Engine:
    """An engine whose tables are there; `sqlite:///PATH` or `postgresql+psycopg://…`.

    On SQLite every transaction is BEGIN IMMEDIATE: leases are taken one after the other, by all processes on the
    file. Raises ScheduleError, which never repeats the URL: it may hold a password.
    """
    try:
        return database.open_database(_parsed(url), metadata, _TABLES_LOCK)
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise ScheduleError(f"cannot open the auditor's schedule: {str(cause).strip()}") from error


def sqlite_url(path: Path) -> str:
    """The URL of a file."""
    return f"sqlite:///{path.absolute()}"


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ScheduleError("--database: expected sqlite:///PATH or postgresql+psycopg://…") from None
    if parsed.drivername == "postgresql+psycopg" or (parsed.drivername == "sqlite" and parsed.database):
        return parsed
    raise ScheduleError(f"--database: expected sqlite:///PATH or postgresql+psycopg://…, not {parsed.drivername}")


_AT_ONCE = 64
"""Candidates of one statement; the log's order is kept between them."""


class Schedule:
    """Divides work between any number of auditors that share one database.

    It only schedules: owed receipts and their verdicts follow from the log, and an empty schedule is a correct one.
    Concurrency: every method is atomic, from any process and any thread. A lease belongs to one holder until it
    expires, so no two examine a receipt at once unless one of them has been away for longer than a lease. Errors:
    ScheduleError where the database fails.

    Times are those of `clock`, in Unix seconds: the clocks of machines
    that share a database have to agree to well within a lease.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
        pause_seconds: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._lease_seconds = lease_seconds
        self._max_attempts = max_attempts
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._label = f"{socket.gethostname()}:{os.getpid()}"

    def lease(self, candidates: Sequence[int]) -> Lease | None:
        """The first of these receipts that nobody holds, that does not pause and is not dead; None where all are.

        One that has been leased `max_attempts` times without an end is dead from here on.
        """
        for start in range(0, len(candidates), _AT_ONCE):
            with self._transaction() as connection:
                leased = self._lease_one(connection, candidates[start : start + _AT_ONCE])
            if leased is not None:
                return leased
        return None

    def renew(self, lease: Lease) -> bool:
        """The heartbeat: another full term from now. False where the lease has expired and somebody else took it."""
        with self._transaction() as connection:
            return self._change(connection, lease, until=self._clock() + self._lease_seconds)

    def finish(self, lease: Lease) -> None:
        """The receipt has its verdict: the job is gone."""
        with self._transaction() as connection:
            connection.execute(delete(jobs).where(_held(lease)))

    def give_back(self, lease: Lease) -> None:
        """As if it had never been leased: nothing was tried, or the reason was not the receipt."""
        with self._transaction() as connection:
            self._change(connection, lease, holder=None, until=0.0, attempts=lease.attempts - 1)

    def put_back(self, lease: Lease, error: str) -> None:
        """The attempt failed: again after a pause, dead after `max_attempts`."""
        now, dead = self._clock(), lease.attempts >= self._max_attempts
        pause = now + self._pause_seconds * lease.attempts
        with self._transaction() as connection:
            self._change(connection, lease, holder=None, until=pause, dead=dead, error=error[:2048])

    def jobs(self) -> tuple[Job, ...]:
        """Everything on the schedule, in index order."""
        now = self._clock()
        with self._transaction() as connection:
            rows = connection.execute(select(jobs).order_by(jobs.c.receipt_index)).all()
        return tuple(
            Job(row.receipt_index, _state(row, now), row.label, row.until, row.attempts, row.error) for row in rows
        )

    def forget(self, receipt_indexes: Iterable[int]) -> None:
        """Take jobs off that nobody holds: settled in the log, or dead ones that are to be tried afresh."""
        unwanted = list(receipt_indexes)
        for start in range(0, len(unwanted), _AT_ONCE):
            some = jobs.c.receipt_index.in_(unwanted[start : start + _AT_ONCE])
            with self._transaction() as connection:
                connection.execute(delete(jobs).where(some, _unheld(self._clock())))

    def take_draw(self) -> DrawTurn | None:
        """The right to draw; None while somebody else has it."""
        now, holder = self._clock(), uuid.uuid4().hex
        with self._transaction() as connection:
            _insert_missing(connection, draw, [{"id": 1, "holder": None, "until": 0.0, "envelope": None}])
            free = select(draw).where(or_(draw.c.holder.is_(None), draw.c.until <= now))
            row = connection.execute(free.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            connection.execute(update(draw).values(holder=holder, until=now + self._lease_seconds))
            return DrawTurn(holder, row.envelope)

    def keep_draw(self, turn: DrawTurn, envelope: bytes) -> bool:
        """Keep a signed draw before it is sent, so that no other one gets into the log: a caller who could make an
        auditor sign again could choose. False where the turn has been lost.
        """
        until = self._clock() + self._lease_seconds
        kept = update(draw).where(draw.c.holder == turn.holder).values(envelope=envelope, until=until)
        with self._transaction() as connection:
            return connection.execute(kept).rowcount == 1

    def end_draw(self, turn: DrawTurn, *, done: bool) -> None:
        """Give the right back; `done` where the draw that was kept is in the log or void."""
        mine = draw.c.holder == turn.holder
        with self._transaction() as connection:
            connection.execute(delete(draw).where(mine) if done else update(draw).where(mine).values(holder=None))

    def close(self) -> None:
        """Release connections."""
        self._engine.dispose()

    def _lease_one(self, connection: Connection, candidates: Sequence[int]) -> Lease | None:
        now = self._clock()
        _insert_missing(connection, jobs, [_new_row(index) for index in candidates])
        mine = and_(jobs.c.receipt_index.in_(candidates), jobs.c.dead.is_(False), jobs.c.until <= now)
        self._bury(connection, mine)
        free = select(jobs).where(mine).order_by(jobs.c.receipt_index).limit(1).with_for_update(skip_locked=True)
        row = connection.execute(free).first()
        if row is None:
            return None
        lease = Lease(row.receipt_index, uuid.uuid4().hex, row.attempts + 1)
        taken = update(jobs).where(jobs.c.receipt_index == lease.receipt_index)
        until = now + self._lease_seconds
        connection.execute(taken.values(holder=lease.holder, label=self._label, until=until, attempts=lease.attempts))
        return lease

    def _bury(self, connection: Connection, mine: Any) -> None:
        """The dead letters among expired leases: examined so often, and whoever did it never came back."""
        lost = select(jobs.c.receipt_index).where(mine, jobs.c.attempts >= self._max_attempts)
        lost = lost.with_for_update(skip_locked=True)
        indexes = connection.execute(lost).scalars().all()
        if indexes:
            error = f"{self._max_attempts} auditors in a row ended while examining it"
            dead = update(jobs).where(jobs.c.receipt_index.in_(indexes))
            connection.execute(dead.values(dead=True, holder=None, error=error))

    def _change(self, connection: Connection, lease: Lease, **values: object) -> bool:
        return connection.execute(update(jobs).where(_held(lease)).values(**values)).rowcount == 1

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise ScheduleError(f"the auditor's schedule failed: {str(cause).strip()}") from error


def _held(lease: Lease) -> Any:
    return and_(jobs.c.receipt_index == lease.receipt_index, jobs.c.holder == lease.holder)


def _unheld(now: float) -> Any:
    return or_(jobs.c.holder.is_(None), jobs.c.until <= now)


def _new_row(index: int) -> dict[str, object]:
    return {
        "receipt_index": index, "holder": None, "label": "", "until": 0.0, "attempts": 0, "dead": False, "error": "",
    }  # fmt: skip


def _insert_missing(connection: Connection, table: Any, rows: Sequence[dict[str, object]]) -> None:
    """Insert the rows whose key is not there yet. Two processes that do it at once do not disturb each other."""
    if not rows:
        return
    kind = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(kind.insert(table).on_conflict_do_nothing(), rows)


def _state(row: Any, now: float) -> str:
    if row.dead:
        return DEAD
    return LEASED if row.holder is not None and row.until > now else WAITING
