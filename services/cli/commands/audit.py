"""`kolm audit`: compute receipted requests again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures import exits
from services.cli.options import options
from services.cli.options.engine_options import ENGINE, EngineOptions


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
    json: options.Json = False,
) -> None:
    """Make one pass over the ledger: replay owed receipts and spot checks without a verdict, append the verdicts.

    Exit code 3 if a replay deviates, something has been tampered with, or an earlier deviation is still halted;
    1 if a receipt could not be replayed, which is no pass.
    """
    from services.auditor.serving import AuditorPlan
    from services.cli.jobs.audit_pass import run_pass
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
        folder=home.data_dir,
        spot_checks=sample,
    )
    done = run_pass(plan, quiet=json)
    if json:
        print_json(pass_json(done))
    else:
        show_pass(done)
    raise typer.Exit(exits.VERIFICATION_FAILED if done.deviated else exits.OK if done.passed else exits.FAILED)
