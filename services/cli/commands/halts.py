"""`kolm halts`: what audits have stopped, and the operator's signed word that it may go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli import options
from services.cli.exits import Missing, UsageError

if TYPE_CHECKING:
    from services.client.log import Halt


def list_(ledger: options.Ledger = options.LEDGER, json: options.Json = False) -> None:
    """List open halts: what is not served with speculation until somebody resumes it."""
    from rich.markup import escape

    from services.cli.output import data, print_json, short, table
    from services.client import LedgerClient

    with LedgerClient.connect(ledger) as client:
        state = client.halt_state()
    if json:
        print_json({"epoch": state.epoch, "halts": [_halt_json(halt) for halt in state.halts]})
        return
    made = table("halt", "verdict", "method", "base", "why", right=("halt", "verdict"))
    for halt in state.halts:
        scope = halt.scope
        made.add_row(
            str(halt.halt_index), str(halt.verdict_index), scope.method, short(scope.base_cid), escape(halt.reason)
        )
    data().print(made if state.halts else f"nothing is halted; {state.epoch} halts so far")


def sign(
    file: Annotated[Path, typer.Argument(dir_okay=False, help="Where signatures are collected; made where missing.")],
    halt: Annotated[
        int | None, typer.Option(min=0, help="The halt to resume, as `kolm halts list` shows it; for a new file.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why it may go on; for a new file.")] = "resumed by operators",
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    key: Annotated[Path | None, typer.Option(help="The operator's key. Default: <data-dir>/keys/operator.pem.")] = None,
    json: options.Json = False,
) -> None:
    """Sign a resume in a file, without appending it. Where several operators have to sign, each does this in turn."""
    from services.cli.jobs.resumes import (
        operator_key,
        operators_needed,
        read_resume,
        sign_file,
        signed_resume,
        write_resume,
    )
    from services.cli.jobs.trust import trusted_directory
    from services.cli.output import data, print_json
    from services.client import LedgerClient

    directory = trusted_directory(trusted, data_dir)
    signing = operator_key(key or data_dir / "keys" / "operator.pem", directory)
    if not file.exists():
        if halt is None:
            raise UsageError(f"{file} does not exist: name the halt to resume with --halt", "`kolm halts list`")
        with LedgerClient.connect(ledger) as client:
            (chosen,) = _chosen(client.halt_state().halts, halt)
        write_resume(file, signed_resume(chosen, signing, reason))
    _, document = read_resume(file)
    if halt not in (None, document.halt_index):
        raise UsageError(f"--halt: {file} resumes halt {document.halt_index}, not {halt}")
    signatures, needed = len(sign_file(file, signing).signatures), operators_needed(directory)
    if json:
        print_json({"halt_index": document.halt_index, "signatures": signatures, "needed": needed})
        return
    data().print(
        f"signed the resume of halt {document.halt_index}, {document.scope.method}: {document.reason!r}; "
        f"{signatures} of {needed} signatures"
    )


def resume(
    halt: Annotated[int | None, typer.Argument(min=0, help="The halt's entry, as `kolm halts list` shows it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Resume every open halt.")] = False,
    file: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Append the resume that operators have signed in this file.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why it may go on; goes into the log.")] = "resumed by an operator",
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    key: Annotated[Path | None, typer.Option(help="The operator's key. Default: <data-dir>/keys/operator.pem.")] = None,
    json: options.Json = False,
) -> None:
    """Append a resume, signed with the operator's key or by several operators in a file. The generation service
    serves the scope again at once.
    """
    from services.cli.jobs.resumes import append_resume, operator_key, read_resume, signed_resume
    from services.cli.jobs.trust import trusted_directory
    from services.cli.output import data, print_json
    from services.client import LedgerClient

    if [halt is not None, every, file is not None].count(True) != 1:
        raise UsageError("expected one of the HALT to resume, --all and --file", "`kolm halts list` shows them")
    with LedgerClient.connect(ledger) as client:
        if file is not None:
            envelope, document = read_resume(file)
            resumed = [(document.halt_index, document.scope.method, append_resume(client, envelope))]
        else:
            chosen = _chosen(client.halt_state().halts, halt)
            signing = operator_key(key or data_dir / "keys" / "operator.pem", trusted_directory(trusted, data_dir))
            resumed = [
                (each.halt_index, each.scope.method, append_resume(client, signed_resume(each, signing, reason)))
                for each in chosen
            ]
    if json:
        print_json([{"halt_index": halted, "resume_index": index} for halted, _, index in resumed])
        return
    for halted, method, index in resumed:
        data().print(f"resumed {method}: halt {halted}, resume is entry {index}")


def _chosen(halts: tuple[Halt, ...], index: int | None) -> tuple[Halt, ...]:
    chosen = tuple(halt for halt in halts if index is None or halt.halt_index == index)
    if not chosen:
        what = "there is no open halt" if index is None else f"entry {index} is no open halt"
        raise Missing(what, "`kolm halts list` shows what is halted")
    return chosen


def _halt_json(halt: Halt) -> dict[str, Any]:
    scope = halt.scope
    return {
        "halt_index": halt.halt_index,
        "verdict_index": halt.verdict_index,
        "scope": {"base_cid": scope.base_cid, "method": scope.method, "head_cid": scope.head_cid},
        "reason": halt.reason,
    }
