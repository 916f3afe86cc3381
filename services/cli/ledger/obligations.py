"""Policies and obligations of auditors, and whether they were kept: document and view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledger.audit.obligation import Completeness, Obligation
from services.cli.frame.output import members
from services.cli.frame.views import DASH, Column, Line, Styled, View, joined, outcome, table

_STATE_STYLES = {"JUDGED": "dim", "OWED": "", "UNDRAWN": "dim", "OVERDUE": "bold red", "LATE": "red"}


def obligations_document(listed: Sequence[Obligation], done: Completeness) -> dict[str, Any]:
    """Policies of auditors, their obligations, and the verdicts."""
    terms = ("rate", "within_seconds", "issued_at")
    counts = members(done, "outcomes", "independent", "owed", "undrawn", "unreplayable", "unpromised", "void_draws")
    return (
        {"kept": done.is_kept}
        | members(done, "problem", "as_of")
        | counts
        | {
            "late": [one.index for one in done.late],
            "overdue": [one.index for one in done.overdue],
            "policies": [{"index": index, **members(policy, *terms)} for index, policy in done.policies],
            "obligations": [
                members(one, "index", "receipt_id", "sampled", "rate", "policy_index", "draw_index", "verdict_index")
                | members(one, "outcome", "independent", "judged_at")
                | {"state": one.state(done.as_of), "due_by": one.due_by or None}
                for one in listed
            ],
        }
    )


def obligations_view(done: dict[str, Any]) -> list[View]:
    """One line for each sampled receipt, and whether the promise is kept."""
    rows = table(
        done["obligations"],
        Column("entry", "index", right=True),
        Column("receipt", "receipt_id", whole=True),
        Column("state", _state),
        Column("due by", lambda one: (one["due_by"] or "–").replace("T", " ")[: len("2026-01-02 03:04")]),
        Column("chosen by", _chosen_by),
    )
    return [*([rows] if done["obligations"] else []), *_summary(done)]


def _state(one: dict[str, Any]) -> Line:
    """The verdict, if there is one, and whether it came in time."""
    state = one["state"]
    parts: list[Line] = [outcome(one["outcome"])] if one["outcome"] else []
    return joined([*parts, *([] if state == "JUDGED" else [Styled(state.lower(), _STATE_STYLES[state])])], " ")


def _summary(done: dict[str, Any]) -> list[Line]:
    outcomes = done["outcomes"]
    counts = joined((f"{count} ", outcome(name)) for name, count in outcomes.items() if count) or ("none yet",)
    lines: list[Line] = [
        _promise(done["policies"]),
        ("sampled and judged: ", *counts, f"; {done['owed']} owed, {done['undrawn']} undrawn"),
    ]
    if believed := outcomes.get("EXACT", 0) - done["independent"]:
        rest = f"{believed} of the EXACT verdicts are by the audited server itself, or by an unknown engine"
        lines.append(Styled(rest, "yellow"))
    if done["unreplayable"]:
        lines.append(Styled(f"{done['unreplayable']} could not be replayed, which does not count as passed", "yellow"))
    if done["unpromised"]:
        lines.append(Styled(f"{done['unpromised']} receipts are older than any policy: nothing was promised", "dim"))
    if done["problem"] is not None:
        lines.append(Styled(done["problem"], "bold red"))
    elif done["policies"]:
        lines.append(Styled("the promise is kept so far", "green"))
    return lines


def _promise(policies: list[dict[str, Any]]) -> Line:
    if not policies:
        return Styled("no auditor has announced a policy: nothing is promised", "yellow")
    *before, policy = policies
    earlier = f"; {len(before)} policies before it" if before else ""
    terms = f"{policy['rate']:g} of all receipts, within {policy['within_seconds']} s"
    return f"promised in entry {policy['index']}: {terms}{earlier}"


def _chosen_by(one: dict[str, Any]) -> Line:
    if one["draw_index"] is not None:
        return Styled(f"draw {one['draw_index']}", "dim")
    if not one["sampled"]:
        return DASH
    return Styled("all are", "dim") if one["rate"] == 1.0 else "its issuer"
