"""The auditors' schedule as a person or a program sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from services.auditor.errors import ScheduleError
from services.auditor.schedule.database import open_database
from services.auditor.schedule.schedule import DEAD, Job
from services.auditor.schedule.sql import SqlSchedule
from services.cli.exits import Failed
from services.cli.output import table


@contextmanager
def open_schedule(url: str) -> Iterator[SqlSchedule]:
    """Raises Failed where the database cannot be had."""
    try:
        with closing(SqlSchedule(open_database(url))) as schedule:
            yield schedule
    except ScheduleError as error:
        raise Failed(str(error), "name it with --schedule, or the --data-dir of `kolm up`") from error


def jobs_json(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    return [
        {
            "receipt_index": job.receipt_index,
            "state": job.state,
            "auditor": job.label,
            "until": datetime.fromtimestamp(job.until, UTC).isoformat(timespec="seconds"),
            "attempts": job.attempts,
            "error": job.error or None,
        }
        for job in jobs
    ]


def jobs_view(jobs: Sequence[Job]) -> RenderableType:
    """One line for each; a schedule without lines is the usual one."""
    if not jobs:
        return Text("nothing is in hand and nothing was given up")
    made = table("entry", "state", "attempts", "auditor", "", right=("entry", "attempts"))
    for job in jobs:
        state = Text("given up", style="bold red") if job.state == DEAD else Text(job.state.lower())
        made.add_row(str(job.receipt_index), state, str(job.attempts), escape(job.label), escape(job.error))
    return made
