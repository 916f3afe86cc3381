"""The schedule's database: SQLite by default, PostgreSQL by URL, with the tables of this version."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from services.auditor.audit_error import ScheduleError
from services.auditor.schedule.tables import metadata
from services.runtime import database

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
