"""`kolm audit`: compute receipted requests again, and see what auditors owe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures import exits
from services.cli.options import options
from services.cli.options.engine_options import ENGINE, EngineOptions

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
    model: Annotated[
        Path | None,
        options.model("--model", "The audited base, loaded here: a transformers directory, a GGUF file, or smollm2."),
    ] = None,
    engine: EngineOptions = ENGINE,
    by_server: Annotated[
        bool,
        typer.Option("--by-server", help="Ask the service at --generation to replay, and believe it: not independent."),
    ] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Decode token by token, all of them.")] = False,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    key: Annotated[
        Path | None,
        typer.Option(help="The auditor's key, or a PKCS#11 URI. Default: <data-dir>/keys/auditor.pem."),
    ] = None,
    key_passphrase_file: options.KeyPassphrase = None,
    schedule: _Schedule = None,
    patience: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for a generation service.")] = 10.0,
    json: options.Json = False,
) -> None:
    """Make one pass over the ledger: replay owed receipts and spot checks without a verdict, append the verdicts.

    Exit code 3 if a replay deviates, something has been tampered with, or an earlier deviation is still halted;
    1 if a receipt could not be replayed, which is no pass.
    """
    from services.auditor.assembly import AuditorPlan
    from services.cli.jobs.audit_pass import run_pass
    from services.cli.jobs.audit_schedule import schedule_url
    from services.cli.jobs.trust import trust_own
    from services.cli.terminal.output import print_json
    from services.cli.views.log.audits import pass_json, show_pass

    if model is None and not by_server:
        hint = "--model computes here, with the same weights; --by-server asks the audited server, and believes it"
        raise exits.UsageError("expected --model or --by-server", hint)
    directory = home.trusted
    if key is None:  # an auditor with a key of this data directory is trusted here
        trust_own(home.key("auditor"), "auditor", directory, key_passphrase_file)
    plan = AuditorPlan(
        ledger=ledger,
        engine=None if by_server or model is None else engine.plan(model),
        generation=generation,
        decode_share=float(decode),
        key_file=home.key("auditor", key),
        key_passphrase_file=key_passphrase_file,
        trusted_directory=directory,
        database=schedule_url(schedule, home.data_dir),
        patience=patience,
        spot_checks=sample,
        condemn_unavailable=False,
    )
    done = run_pass(plan)
    if json:
        print_json(pass_json(done))
    else:
        show_pass(done)
    raise typer.Exit(exits.VERIFICATION_FAILED if done.deviated else exits.OK if done.passed else exits.FAILED)


def obligations(
    open_: Annotated[bool, typer.Option("--open", help="Only receipts without a verdict.")] = False,
    database: options.Database = None,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    json: options.Json = False,
) -> None:
    """Recompute from the log which receipts had to be replayed, and whether each has its verdict in time.

    Exit code 3 if a promise was broken: a verdict is overdue or came too late, a draw is over another log, or a
    document is dated ahead, which puts off what is owed.
    """
    from datetime import UTC, datetime

    from services.cli.jobs.ledger.log_verification import read_obligations
    from services.cli.jobs.trust import load_trusted
    from services.cli.terminal.output import answer
    from services.cli.views.log.obligations import obligations_json, obligations_view

    book, now = read_obligations(ledger, database, load_trusted(home.trusted)), datetime.now(UTC)
    done = book.completeness(now)
    listed = [one for one in book.all() if not (open_ and one.judged_at)]
    answer(json, lambda: obligations_json(listed, done), lambda: obligations_view(listed, done))
    if (ahead := book.dated_ahead(now)) is not None:
        raise exits.VerificationFailed(ahead)
    raise typer.Exit(exits.OK if done.kept else exits.VERIFICATION_FAILED)


def jobs(
    retry: Annotated[
        list[int] | None, typer.Option("--retry", min=0, help="Try the receipt at this entry again; may be repeated.")
    ] = None,
    data_dir: options.DataDir = options.DATA_DIR,
    schedule: _Schedule = None,
    json: options.Json = False,
) -> None:
    """List what auditors have in hand and what they gave up. Exit code 1 if something was given up."""
    from services.auditor.schedule.schedule import DEAD
    from services.cli.jobs.audit_schedule import open_schedule, schedule_url
    from services.cli.terminal.output import answer
    from services.cli.views.log.audits import jobs_json, jobs_view

    with open_schedule(schedule_url(schedule, data_dir)) as opened:
        opened.forget(retry or ())
        listed = opened.jobs()
    answer(json, lambda: jobs_json(listed), lambda: jobs_view(listed))
    raise typer.Exit(exits.FAILED if any(job.state == DEAD for job in listed) else exits.OK)
