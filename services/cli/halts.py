"""`kolm halts`: what audits have stopped, and the operator's signed word that it may go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli import options
from services.cli.exits import Missing, UsageError

if TYPE_CHECKING:
    from services.client.log import Halt

app = typer.Typer(no_args_is_help=True)


@app.command("list")
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


@app.command("resume")
def resume(
    halt: Annotated[int | None, typer.Argument(min=0, help="The halt's entry, as `kolm halts list` shows it.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Resume every open halt.")] = False,
    reason: Annotated[str, typer.Option(help="Why it may go on; goes into the log.")] = "resumed by an operator",
    ledger: options.Ledger = options.LEDGER,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    key: Annotated[Path | None, typer.Option(help="The operator's key. Default: <data-dir>/keys/operator.pem.")] = None,
    json: options.Json = False,
) -> None:
    """Append a resume, signed with the operator's key. The generation service serves the scope again at once."""
    from services.cli.output import data, print_json
    from services.cli.resuming import operator_key, resume_halt
    from services.cli.trust import trusted_directory
    from services.client import LedgerClient

    if (halt is None) != every:
        raise UsageError("expected either the HALT to resume or --all", "`kolm halts list` shows them")
    with LedgerClient.connect(ledger) as client:
        chosen = _chosen(client.halt_state().halts, halt)
        signing = operator_key(key or data_dir / "keys" / "operator.pem", trusted_directory(trusted, data_dir))
        resumed = [(each, resume_halt(client, each, signing, reason)) for each in chosen]
    if json:
        print_json([{"halt_index": each.halt_index, "resume_index": index} for each, index in resumed])
        return
    for each, index in resumed:
        data().print(f"resumed {each.scope.method}: halt {each.halt_index}, resume is entry {index}")


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
