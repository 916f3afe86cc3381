"""`kolm halts`: the scopes that audits have halted, and their resumption, signed by operators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.failures import exits
from services.cli.failures.exits import UsageError
from services.cli.options import options


def list_(ledger: options.Ledger = options.LEDGER, json: options.Json = False) -> None:
    """List open halts: scopes that are not served with speculation until an operator resumes them. Exit code 3 if there
    is one.
    """
    from services.cli.terminal.output import answer
    from services.cli.views.log.halts import halts_json, halts_view
    from services.client import LedgerClient

    with LedgerClient.connect(ledger) as client:
        state = client.halt_state()
    answer(json, lambda: halts_json(state), lambda: halts_view(state))
    raise typer.Exit(exits.VERIFICATION_FAILED if state.halts else exits.OK)


def sign(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="The file with the signatures; created if missing.")],
    halt: Annotated[
        int | None, typer.Option(min=0, help="The halt to resume, as `kolm halts list` shows it; for a new file.")
    ] = None,
    reason: Annotated[str, typer.Option(help="The reason, for a new file.")] = "resumed by operators",
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    key: options.OperatorKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    json: options.Json = False,
) -> None:
    """Sign a resume in a file, without appending it. Where several operators have to sign, each does this in turn."""
    from services.cli.jobs import resumes
    from services.cli.terminal.output import answer
    from services.cli.views.log.halts import signed_json, signed_view
    from services.client import LedgerClient

    signing = resumes.operator_key(home.key("operator", key), home.trusted, key_passphrase_file)
    if file.exists():
        waiting = resumes.read_resume(file)
        if halt not in (None, waiting.document.halt_index):
            raise UsageError(f"--halt: {file} resumes halt {waiting.document.halt_index}, not {halt}")
    elif halt is None:
        raise UsageError(f"{file} does not exist: name the halt to resume with --halt", "`kolm halts list`")
    else:
        with LedgerClient.connect(ledger) as client:
            waiting = resumes.signed_resume(resumes.open_halts(client, halt)[0], signing, reason)
    signed, needed = resumes.sign_file(file, waiting, signing), resumes.operators_needed(home.trusted)
    answer(json, lambda: signed_json(signed, needed), lambda: signed_view(signed, needed))


def resume(
    halt: Annotated[int | None, typer.Argument(min=0, help="The halt's entry, as `kolm halts list` shows it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Resume every open halt.")] = False,
    file: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Append the resume that operators have signed in this file.")
    ] = None,
    reason: Annotated[str, typer.Option(help="The reason; goes into the log.")] = "resumed by an operator",
    ledger: options.Ledger = options.LEDGER,
    home: options.Home = options.HOME,
    key: options.OperatorKey = None,
    key_passphrase_file: options.KeyPassphrase = None,
    json: options.Json = False,
) -> None:
    """Append a resume, signed with the operator's key or by several operators in a file. The generation service
    serves the scope again at once.
    """
    from services.cli.jobs import resumes
    from services.cli.terminal.output import answer
    from services.cli.views.log.halts import resumed_json, resumed_view
    from services.client import LedgerClient

    if [halt is not None, every, file is not None].count(True) != 1:
        raise UsageError("expected one of the HALT to resume, --all and --file", "`kolm halts list` shows them")
    with LedgerClient.connect(ledger) as client:
        if file is not None:
            signed = [resumes.read_resume(file)]
        else:
            chosen = resumes.open_halts(client, halt)
            keys = home.trusted
            signing = resumes.operator_key(home.key("operator", key), keys, key_passphrase_file)
            signed = [resumes.signed_resume(each, signing, reason) for each in chosen]
        resumed = [resumes.append_resume(client, each) for each in signed]
    answer(json, lambda: resumed_json(resumed), lambda: resumed_view(resumed))
