"""One audit pass as a person or a program sees it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from services.auditor.assembly import AuditorPlan, connected
from services.auditor.auditor import Examined
from services.auditor.errors import AuditError, BrokenLog, ServiceAway
from services.cli import exits
from services.cli.output import data, outcome, print_json, table, talk
from services.client import LedgerClient
from services.client.log import Halt


def run_pass(plan: AuditorPlan, *, as_json: bool) -> int:
    """Audit, print, and return the exit code. Raises KolmError, LedgerError, CommandError."""
    with LedgerClient.connect(plan.ledger) as ledger:
        judged = Counter(verdict.outcome for verdict in ledger.verdicts())
        done = _examine(plan)
        halts = ledger.halt_state().halts
    if as_json:
        print_json(_pass_json(done, judged, halts))
    else:
        _show(done, judged, halts)
    return _exit_code(done, halts)


@dataclass(frozen=True, slots=True)
class _Pass:
    """What was examined; `remaining` are entries that were due and are given up or in another auditor's hands."""

    examined: list[Examined]
    undecided: int
    remaining: tuple[int, ...]


def _examine(plan: AuditorPlan) -> _Pass:
    examined: list[Examined] = []
    try:
        with connected(plan, threading.Event()) as auditor, talk().status("reading the ledger") as status:
            for each in auditor.run_pass():
                examined.append(each)
                status.update(f"replayed {len(examined)} with speculation off, entry {each.receipt_index}")
            return _Pass(examined, auditor.undecided, auditor.remaining)
    except BrokenLog as error:
        raise exits.VerificationFailed(str(error), "kolm ledger verify says more") from error
    except ServiceAway as error:
        raise exits.Away(
            str(error), f"{len(examined)} receipts were replayed before; run it again for the rest"
        ) from error
    except AuditError as error:
        raise exits.Failed(str(error)) from error


def _exit_code(done: _Pass, halts: tuple[Halt, ...]) -> int:
    if halts or any(each.finding.outcome == "DEVIATION" or each.finding.tampered for each in done.examined):
        return exits.VERIFICATION_FAILED
    passed = all(each.finding.passed for each in done.examined) and not done.remaining
    return exits.OK if passed else exits.FAILED


def _pass_json(done: _Pass, judged: Counter[str], halts: tuple[Halt, ...]) -> dict[str, Any]:
    return {
        "verdicts": [
            {
                "receipt_id": each.receipt.receipt_id,
                "receipt_index": each.receipt_index,
                "verdict_index": each.verdict_index,
                "halt_index": each.halt_index,
                "outcome": each.finding.outcome,
                "tokens_compared": each.finding.tokens_compared,
                "deviation": None if each.finding.deviation is None else each.finding.deviation.to_document(),
                "reason": each.finding.reason,
                "tampered": each.finding.tampered,
            }
            for each in done.examined
        ],
        "undecided": done.undecided,
        "remaining": list(done.remaining),
        "before": dict(judged),
        "open_halts": [halt.halt_index for halt in halts],
    }


def _show(done: _Pass, judged: Counter[str], halts: tuple[Halt, ...]) -> None:
    console, examined = talk(), done.examined
    if examined:
        data().print(verdict_table(examined))
    found = Counter(each.finding.outcome for each in examined)
    console.print(f"{len(examined)} replayed with speculation off: {_counts(found)}")
    if judged:
        console.print(f"[dim]{sum(judged.values())} had a verdict before: {_counts(judged)}[/]")
    if done.undecided:
        console.print(f"[dim]{done.undecided} receipts wait for a draw[/]")
    if done.remaining:
        console.print(
            f"[yellow]{len(done.remaining)} left: in another auditor's hands or given up, `kolm audit jobs`[/]"
        )
    for halt in halts:
        console.print(f"[bold red]halted:[/] {halt.scope.method}, entry {halt.halt_index}; `kolm halts list` says why")


def verdict_table(examined: list[Examined]) -> RenderableType:
    """One line for each receipt that was replayed."""
    made = table("entry", "method", "tokens", "verdict", "", right=("entry", "tokens"))
    for each in examined:
        made.add_row(
            str(each.receipt_index),
            each.receipt.spec_decode.method,
            str(each.finding.tokens_compared),
            outcome(each.finding.outcome),
            f"[dim]{escape(each.finding.reason or '')}[/]",
        )
    return made


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome(name)}" for name, count in sorted(found.items())) or "nothing was due"
