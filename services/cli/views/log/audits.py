"""What a pass of an auditor found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape

from services.cli.terminal.output import data, outcome, table, talk

if TYPE_CHECKING:
    from services.auditor.auditor import Examined
    from services.cli.jobs.audit_pass import Pass


def pass_json(done: Pass) -> dict[str, Any]:
    """Every verdict, and what is left."""
    return {
        "verdicts": [_examined_json(each) for each in done.examined],
        "elsewhere": [
            {
                "receipt_index": verdict.receipt_index,
                "verdict_index": verdict.index,
                "outcome": verdict.outcome,
                "auditor": done.other,
            }
            for verdict in done.elsewhere
        ],
        "undecided": done.undecided,
        "remaining": list(done.remaining),
        "before": dict(done.before),
        "open_halts": [halt.halt_index for halt in done.halts],
    }


def _examined_json(each: Examined) -> dict[str, Any]:
    finding = each.finding
    return {
        "receipt_id": each.receipt.receipt_id,
        "receipt_index": each.receipt_index,
        "verdict_index": each.verdict_index,
        "halt_index": each.halt_index,
        "outcome": finding.outcome,
        "tokens_compared": finding.tokens_compared,
        "deviation": None if finding.deviation is None else finding.deviation.to_document(),
        "verification": finding.verification,
        "replayed_by": finding.replayed_by,
        "reason": finding.reason,
        "tampered": finding.tampered,
    }


def show_pass(done: Pass) -> None:
    """The verdicts on stdout, the rest on stderr."""
    console = talk()
    if done.examined:
        data().print(_verdict_table(done.examined))
    found = Counter(outcome(each.finding.outcome, each.finding.tokens_compared) for each in done.examined)
    console.print(f"{len(done.examined)} replayed: {_counts(found)}")
    if done.before:
        before = _counts(Counter({outcome(name): count for name, count in done.before.items()}))
        console.print(f"[dim]{done.before.total()} had a verdict before: {before}[/]")
    if done.undecided:
        console.print(f"[dim]{done.undecided} receipts wait for a draw[/]")
    if done.elsewhere:
        theirs = Counter(outcome(verdict.outcome, verdict.tokens_compared) for verdict in done.elsewhere)
        console.print(f"{theirs.total()} replayed meanwhile by {escape(done.other)}: {_counts(theirs)}")
    if done.remaining:
        console.print(
            f"[yellow]{len(done.remaining)} left: every attempt to replay them failed; the auditor's log says how[/]"
        )
    for halt in done.halts:
        console.print(f"[bold red]halted:[/] {halt.scope.method}, entry {halt.halt_index}; `kolm halts list` says why")


def _verdict_table(examined: Sequence[Examined]) -> RenderableType:
    made = table("entry", "method", "tokens", "verdict", "", right=("entry", "tokens"))
    for each in examined:
        made.add_row(
            str(each.receipt_index),
            each.receipt.spec_decode.method,
            str(each.finding.tokens_compared),
            outcome(each.finding.outcome, each.finding.tokens_compared),
            f"[dim]{escape(each.finding.reason or '')}[/]",
        )
    return made


def _counts(found: Counter[str]) -> str:
    """By outcome, as it is shown."""
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "nothing was due"
