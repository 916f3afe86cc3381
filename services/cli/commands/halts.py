"""`kolm halts`: the scopes that audits have halted, their resumption, signed by operators, and a drill of both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.failures import exits
from services.cli.failures.exits import UsageError
from services.cli.options import options

if TYPE_CHECKING:
    from services.cli.jobs.resumes import SignedResume


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


def resume(
    halt: Annotated[int | None, typer.Argument(min=0, help="The halt's entry, as `kolm halts list` shows it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Resume every open halt.")] = False,
    file: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Append the resume that operators have signed in this file.")
    ] = None,
    sign_into: Annotated[
        Path | None,
        typer.Option(
            "--sign-into",
            metavar="FILE",
            dir_okay=False,
            help="Append nothing, add a signature to this file; made for the HALT if missing. Each operator does this.",
        ),
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
    from services.cli.views.log.halts import resumed_json, resumed_view, signed_json, signed_view
    from services.client import LedgerClient

    if sign_into is not None:
        if every or file is not None:
            raise UsageError("--sign-into: signs one resume and appends nothing; leave --all and --file out")
        waiting = _signed_into(sign_into, halt, reason, ledger, home, key, key_passphrase_file)
        needed = resumes.operators_needed(home.trusted)
        return answer(json, lambda: signed_json(waiting, needed), lambda: signed_view(waiting, needed))
    if [halt is not None, every, file is not None].count(True) != 1:
        raise UsageError("expected one of the HALT to resume, --all and --file", "`kolm halts list` shows them")
    with LedgerClient.connect(ledger) as client:
        if file is not None:
            signed = [resumes.read_resume(file)]
        else:
            chosen = resumes.open_halts(client, halt)
            keys = home.trusted
            signing = resumes.operator_key(home.key("operator", key), keys, key_passphrase_file, client)
            signed = [resumes.signed_resume(each, signing, reason) for each in chosen]
        resumed = [resumes.append_resume(client, each) for each in signed]
    answer(json, lambda: resumed_json(resumed), lambda: resumed_view(resumed))


def _signed_into(
    path: Path,
    halt: int | None,
    reason: str,
    ledger: str,
    home: options.Home,
    key: Path | None,
    passphrase_file: Path | None,
) -> SignedResume:
    from services.cli.jobs import resumes
    from services.client import LedgerClient

    place, keys = home.key("operator", key), home.trusted
    if path.exists():
        waiting = resumes.read_resume(path)
        signing = resumes.co_signer(place, keys, passphrase_file, ledger)
        if halt not in (None, waiting.document.halt_index):
            raise UsageError(f"HALT: {path} resumes halt {waiting.document.halt_index}, not {halt}")
    elif halt is None:
        raise UsageError(f"{path} does not exist: name the HALT to resume", "`kolm halts list`")
    else:
        with LedgerClient.connect(ledger) as client:
            chosen = resumes.open_halts(client, halt)[0]
            signing = resumes.operator_key(place, keys, passphrase_file, client)
            waiting = resumes.signed_resume(chosen, signing, reason)
    return resumes.sign_file(path, waiting, signing)


def drill(json: options.Json = False) -> None:
    """See a DEVIATION, the halt, the refusal and the resume, in two minutes: in a stack of the drill's own, in a
    temporary folder, with a model of random weights whose arithmetic is broken on purpose. Nothing of yours is touched.
    Exit code 0 if every step happened.
    """
    from services.cli.failures.exits import Failed
    from services.cli.jobs.drill.steps import DidNotHappen, drill, own_folder, stopped_at_the_end
    from services.cli.jobs.running.supervisor import NotReady, ServiceDied, StopRequested, Supervisor
    from services.cli.terminal import output
    from services.cli.views.log.halts import drill_json, drill_opening, drill_summary, seen_view

    shown = output.talk() if json else output.data()
    supervisor, seen = Supervisor(lambda service, line: None), []
    with own_folder() as folder, stopped_at_the_end(supervisor):
        try:
            shown.print(drill_opening(folder))
            for step in drill(folder, supervisor):
                seen.append(step)
                shown.print(seen_view(len(seen), step))
        except StopRequested as request:
            shown.print(f"{request}: the drill is stopped and its folder removed")
            raise typer.Exit(exits.INTERRUPTED) from None
        except (ServiceDied, NotReady, DidNotHappen) as error:
            raise Failed(f"the drill ended after {len(seen)} steps: {error}", "nothing of yours was touched") from error
    if json:
        output.print_json(drill_json(seen))
    else:
        shown.print(drill_summary(seen))
