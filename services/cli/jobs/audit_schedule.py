"""The schedule that auditors share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from services.auditor.errors import ScheduleError
from services.auditor.schedule.database import open_database, sqlite_url
from services.auditor.schedule.sql import SqlSchedule
from services.cli.exits import Failed, UsageError


def schedule_url(named: str | None, data_dir: Path) -> str:
    """The URL that was named, else that of the data directory's file. Raises UsageError."""
    if named is not None and not named.startswith(("sqlite:///", "postgresql+psycopg://")):
        raise UsageError("--schedule: expected sqlite:///PATH or postgresql+psycopg://…")
    return named or sqlite_url(data_dir / "auditor.sqlite3")


@contextmanager
def open_schedule(url: str) -> Iterator[SqlSchedule]:
    """Raises Failed if the database cannot be opened."""
    try:
        with closing(SqlSchedule(open_database(url))) as schedule:
            yield schedule
    except ScheduleError as error:
        raise Failed(str(error), "name it with --schedule, or the --data-dir of `kolm up`") from error
