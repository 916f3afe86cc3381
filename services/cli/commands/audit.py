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
    decode: Annotated[bool, typer.Option("--decode", help="Decode token by token, all of them.")] = False,
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    key: Annotated[
        Path | None,
        typer.Option(help="The auditor's key, or a PKCS#11 URI. Default: <data-dir>/keys/auditor.pem."),
    ] = None,
    key_passphrase_file: options.KeyPassphrase = None,
    schedule: _Schedule = None,
    json: options.Json = False,
) -> None:
    """Make one pass over the ledger: replay owed receipts and spot checks without a verdict, append the verdicts.

    Exit code 3 if a replay deviates, something has been tampered with, or an earlier deviation is still halted;
    1 if a receipt could not be replayed, which is no pass.
    """
    from services.auditor.serving import AuditorPlan
    from services.cli.jobs.audit_pass import run_pass
    from services.cli.jobs.audit_schedule import schedule_url
    from services.cli.jobs.trust import trust_own
    from services.cli.terminal.output import print_json
    from services.cli.views.log.audits import pass_json, show_pass

    if model is None:
        raise exits.UsageError("expected --model: the audited base, with the same weights")
    directory = home.trusted
    if key is None:  # an auditor with a key of this data directory is trusted here
        trust_own(home.key("auditor"), "auditor", directory, key_passphrase_file)
    plan = AuditorPlan(
        ledger=ledger,
        engine=engine.plan(model),
        decode_share=float(decode),
        key_file=home.key("auditor", key),
        key_passphrase_file=key_passphrase_file,
        trusted_directory=directory,
        database=schedule_url(schedule, home.data_dir),
        spot_checks=sample,
    )
    done = run_pass(plan, quiet=json)
    if json:
        print_json(pass_json(done))
    else:
        show_pass(done)
    raise typer.Exit(exits.VERIFICATION_FAILED if done.deviated else exits.OK if done.passed else exits.FAILED)


def jobs(
    retry: Annotated[
        list[int] | None, typer.Option("--retry", min=0, help="Try the receipt at this entry again; may be repeated.")
    ] = None,
    data_dir: options.DataDir = options.DATA_DIR,
    schedule: _Schedule = None,
    json: options.Json = False,
) -> None:
    """List what auditors have in hand and what they gave up. Exit code 1 if something was given up."""
    from services.auditor.schedule import DEAD
    from services.cli.jobs.audit_schedule import open_schedule, schedule_url
    from services.cli.terminal.output import answer
    from services.cli.views.log.audits import jobs_json, jobs_view

    with open_schedule(schedule_url(schedule, data_dir)) as opened:
        opened.forget(retry or ())
        listed = opened.jobs()
    answer(json, lambda: jobs_json(listed), lambda: jobs_view(listed))
    raise typer.Exit(exits.FAILED if any(job.state == DEAD for job in listed) else exits.OK)
