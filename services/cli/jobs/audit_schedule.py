"""The schedule that auditors share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import make_url

from services.auditor.audit_error import ScheduleError
from services.auditor.schedule import Schedule, open_database, sqlite_url
from services.cli.failures.exits import Failed, Missing, UsageError

_ELSEWHERE = "name it with --schedule, or the --data-dir of the auditor; one in a container is asked there"


def schedule_url(named: str | None, data_dir: Path) -> str:
    """The URL that was named, else that of the data directory's file. Raises UsageError."""
    if named is not None and not named.startswith(("sqlite:///", "postgresql+psycopg://")):
        raise UsageError("--schedule: expected sqlite:///PATH or postgresql+psycopg://…")
    return named or sqlite_url(data_dir / "auditor.sqlite3")


@contextmanager
def open_schedule(url: str) -> Iterator[Schedule]:
    """Raises Missing for a file that is not there, Failed if the database cannot be opened."""
    parsed = make_url(url)
    if parsed.drivername == "sqlite" and not Path(parsed.database or "").is_file():
        raise Missing(f"there is no auditor's schedule at {parsed.database}", _ELSEWHERE)
    try:
        with closing(Schedule(open_database(url))) as schedule:
            yield schedule
    except ScheduleError as error:
        raise Failed(str(error), _ELSEWHERE) from error
