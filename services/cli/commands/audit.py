"""`kolm audit`: replay receipts with speculation off, and see what auditors owe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import exits, options

_Schedule = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        envvar="KOLM_AUDITOR_DATABASE",
        help="The schedule that auditors share, a database URL. Default: <data-dir>/auditor.sqlite3.",
    ),
]


def run(
    sample: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of receipts to replay beyond those owed, 1 for all.")
    ] = 1.0,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    key: Annotated[Path | None, typer.Option(help="The auditor's key. Default: <data-dir>/keys/auditor.pem.")] = None,
    schedule: _Schedule = None,
    secret: Annotated[
        str | None, typer.Option(envvar="KOLM_AUDITOR_SECRET", help="The services' secret of auditors.")
    ] = None,
    patience: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for a generation service.")] = 10.0,
    json: options.Json = False,
) -> None:
    """One pass over the ledger: replay what is owed and spot checks without a verdict, and append the verdicts.

    Exit code 3 if a replay deviates, something has been tampered with, or an earlier deviation is still halted;
    1 if a receipt could not be replayed, which is no pass.
    """
    from services.auditor.assembly import AuditorPlan
    from services.cli.jobs.audit_pass import run_pass
    from services.cli.jobs.trust import trusted_directory

    plan = AuditorPlan(
        ledger=ledger,
        generation=generation,
        key_file=key or data_dir / "keys" / "auditor.pem",
        trusted_directory=trusted_directory(trusted, data_dir),
        database=_schedule_url(schedule, data_dir),
        patience=patience,
        spot_checks=sample,
        condemn_unavailable=False,
        ledger_secret=secret,
        replay_secret=secret,
    )
    raise typer.Exit(run_pass(plan, as_json=json))


def obligations(
    open_: Annotated[bool, typer.Option("--open", help="Only what has no verdict yet.")] = False,
    database: Annotated[
        Path | None, typer.Option("--database", help="Read this ledger file, without a server.")
    ] = None,
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    json: options.Json = False,
) -> None:
    """Recompute from the log which receipts had to be replayed, and whether each has its verdict in time.

    Exit code 3 if a promise was broken: a verdict is overdue or came too late, or a draw is over another log.
    """
    from datetime import UTC, datetime

    from services.cli.jobs.trust import load_trusted, trusted_directory
    from services.cli.output import data, print_json
    from services.cli.views.obligations import obligations_json, obligations_view, read_obligations

    book = read_obligations(ledger, database, load_trusted(trusted_directory(trusted, data_dir)))
    done = book.completeness(datetime.now(UTC))
    listed = [one for one in book.all() if not (open_ and one.judged_at)]
    if json:
        print_json(obligations_json(listed, done))
    else:
        data().print(obligations_view(listed, done))
    raise typer.Exit(exits.OK if done.kept else exits.VERIFICATION_FAILED)


def jobs(
    retry: Annotated[
        list[int] | None, typer.Option("--retry", min=0, help="Try this receipt's entry afresh; may be repeated.")
    ] = None,
    data_dir: options.DataDir = options.DATA_DIR,
    schedule: _Schedule = None,
    json: options.Json = False,
) -> None:
    """List what auditors have in hand and what they gave up. Exit code 1 if something was given up."""
    from services.cli.jobs.audit_schedule import jobs_json, jobs_view, open_schedule
    from services.cli.output import data, print_json

    with open_schedule(_schedule_url(schedule, data_dir)) as opened:
        opened.forget(retry or ())
        listed = opened.jobs()
    if json:
        print_json(jobs_json(listed))
    else:
        data().print(jobs_view(listed))
    raise typer.Exit(exits.FAILED if any(job.state == "DEAD" for job in listed) else exits.OK)


def _schedule_url(schedule: str | None, data_dir: Path) -> str:
    from services.auditor.schedule.database import sqlite_url

    if schedule is not None and not schedule.startswith(("sqlite:///", "postgresql+psycopg://")):
        raise exits.UsageError("--schedule: expected sqlite:///PATH or postgresql+psycopg://…")
    return schedule or sqlite_url(data_dir / "auditor.sqlite3")
