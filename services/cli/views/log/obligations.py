"""Obligations of auditors: what they promised, what they owe, and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ledger.audit.obligation import Completeness, Obligation
from services.cli.terminal.output import outcome, table

_STATE_STYLES = {"JUDGED": "dim", "OWED": "", "UNDRAWN": "dim", "OVERDUE": "bold red", "LATE": "red"}


def obligations_json(listed: Sequence[Obligation], done: Completeness) -> dict[str, Any]:
    """The listed obligations, and the summary over all of them."""
    return {
        "kept": done.kept,
        "problem": done.problem,
        "as_of": done.as_of,
        "outcomes": done.outcomes,
        "independent": done.independent,
        "owed": done.owed,
        "undrawn": done.undrawn,
        "late": [one.index for one in done.late],
        "overdue": [one.index for one in done.overdue],
        "void_draws": list(done.void_draws),
        "unpromised": done.unpromised,
        "policies": [
            {
                "index": index,
                "rate": policy.rate,
                "within_seconds": policy.within_seconds,
                "issued_at": policy.issued_at,
            }
            for index, policy in done.policies
        ],
        "obligations": [
            {
                "index": one.index,
                "receipt_id": one.receipt_id,
                "state": one.state(done.as_of),
                "rate": one.rate,
                "due_by": one.due_by or None,
                "policy_index": one.policy_index,
                "draw_index": one.draw_index,
                "verdict_index": one.verdict_index,
                "outcome": one.outcome,
                "independent": one.independent,
                "judged_at": one.judged_at,
            }
            for one in listed
        ],
    }


def obligations_view(
    log: RenderableType, listed: Sequence[Obligation], done: Completeness, ahead: str | None
) -> RenderableType:
    """Below the log's own report, one line for each sampled receipt, and whether the promise is kept. `ahead` names a
    document of a time to come, which puts off what is owed.
    """
    made = table("entry", "receipt", "state", "due by", "chosen by", right=("entry",), whole=("receipt",))
    for one in listed:
        due = one.due_by.replace("T", " ")[: len("2026-01-02 03:04")] or "–"
        made.add_row(str(one.index), one.receipt_id, _state(one, done.as_of), due, _chosen_by(one))
    dated = [] if ahead is None else [Text(ahead, style="bold red")]
    return Group(log, *([made] if listed else []), *_summary(done), *dated)


def _state(one: Obligation, as_of: str) -> Text:
    """The verdict, where there is one, and whether it came in time."""
    state = one.state(as_of)
    shown = Text("" if state == "JUDGED" else state.lower(), style=_STATE_STYLES[state])
    parts = [Text.from_markup(outcome(one.outcome))] if one.outcome else []
    return Text(" ").join([*parts, *([shown] if shown else [])])


def _summary(done: Completeness) -> list[Text]:
    lines = [_promise(done)]
    counts = ", ".join(f"{count} {outcome(name)}" for name, count in done.outcomes.items() if count)
    judged = f"sampled and judged: {counts or 'none yet'}; {done.owed} owed, {done.undrawn} undrawn"
    lines.append(Text.from_markup(judged))
    if believed := done.outcomes.get("EXACT", 0) - done.independent:
        whose = f"{believed} of the EXACT verdicts rest on the word of the audited server, or do not say whose"
        lines.append(Text(whose, style="yellow"))
    if done.unreplayable:
        lines.append(Text(f"{done.unreplayable} could not be replayed, which is no pass", style="yellow"))
    if done.unpromised:
        lines.append(Text(f"{done.unpromised} receipts stand before any policy: nothing was promised", style="dim"))
    if done.problem is not None:
        lines.append(Text(done.problem, style="bold red"))
    elif done.policies:
        lines.append(Text("the promise is kept so far", style="green"))
    return lines


def _promise(done: Completeness) -> Text:
    if not done.policies:
        return Text("no auditor has announced a policy: nothing is promised", style="yellow")
    index, policy = done.policies[-1]
    earlier = f"; {len(done.policies) - 1} policies before it" if len(done.policies) > 1 else ""
    terms = f"{policy.rate:g} of all receipts, within {policy.within_seconds} s"
    return Text(f"promised in entry {index}: {terms}{earlier}")


def _chosen_by(one: Obligation) -> str:
    if one.draw_index is not None:
        return f"[dim]draw {one.draw_index}[/]"
    if not one.sampled:
        return "[dim]–[/]"
    return "[dim]all are[/]" if one.rate == 1.0 else "its issuer"
