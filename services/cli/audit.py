"""`kolm audit`: replay receipts with speculation off, now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _family() -> None:
    """Keeps `run` a word of its own while it is the only one."""


@app.command("run")
def run(
    sample: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of receipts to replay, 1 for all.")] = 1.0,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    key: Annotated[Path | None, typer.Option(help="The auditor's key. Default: <data-dir>/keys/auditor.pem.")] = None,
    secret: Annotated[
        str | None, typer.Option(envvar="KOLM_AUDITOR_SECRET", help="The services' secret of auditors.")
    ] = None,
    patience: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for a generation service.")] = 10.0,
    json: options.Json = False,
) -> None:
    """One pass over the ledger: replay every sampled receipt that has no verdict yet, and append the verdicts.

    Exit code 3 if a replay deviates, something has been tampered with, or an earlier deviation is still halted;
    1 if a receipt could not be replayed, which is no pass.
    """
    from services.auditor.assembly import AuditorPlan
    from services.cli.audit_pass import run_pass
    from services.cli.trust import trusted_directory

    plan = AuditorPlan(
        ledger=ledger,
        generation=generation,
        key_file=key or data_dir / "keys" / "auditor.pem",
        trusted_directory=trusted_directory(trusted, data_dir),
        rate=sample,
        patience=patience,
        condemn_unavailable=False,
        ledger_secret=secret,
        replay_secret=secret,
    )
    raise typer.Exit(run_pass(plan, as_json=json))
