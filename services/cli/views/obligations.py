"""`kolm audit obligations`: what the auditor promised, what it owes by that, and what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from ledger.audit.obligation import Completeness, Obligation
from ledger.audit.obligation_fold import ObligationFold
from ledger.documents.signed_document import read_document
from ledger.errors import LedgerError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from services.cli.exits import VerificationFailed
from services.cli.jobs.ledger.log_verification import from_database, from_server
from services.cli.output import outcome, table

_STATE_STYLES = {"JUDGED": "dim", "OWED": "", "UNDRAWN": "dim", "OVERDUE": "bold red", "LATE": "red"}


def read_obligations(ledger: str, database: Path | None, trusted: TrustedKeys) -> ObligationFold:
    """Recomputed from the entries, after every one of them has been verified. Raises VerificationFailed, KolmError."""
    book = ObligationFold()

    def seen(data: bytes) -> None:
        try:
            envelope = Entry.from_bytes(data).envelope
            book.observe(leaf_hash(data), envelope, read_document(envelope))
        except LedgerError:
            return  # the verification that follows says what is wrong with it

    report = (
        from_server(ledger, trusted, None, seen) if database is None else from_database(database, trusted, None, seen)
    )
    if not report.ok:
        raise VerificationFailed(f"the log does not verify: {report.problem}", "`kolm ledger verify` says more")
    return book


def obligations_json(listed: list[Obligation], done: Completeness) -> dict[str, Any]:
    """What is listed, and the summary over everything."""
    return {
        "kept": done.kept,
        "problem": done.problem,
        "as_of": done.as_of,
        "outcomes": done.outcomes,
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
                "judged_at": one.judged_at,
            }
            for one in listed
        ],
    }


def obligations_view(listed: list[Obligation], done: Completeness) -> RenderableType:
    """One line for each, and whether the promise is kept."""
    made = table("entry", "receipt", "state", "due by", "chosen by", "verdict", right=("entry",))
    for one in listed:
        state = one.state(done.as_of)
        style = _STATE_STYLES[state]
        made.add_row(
            str(one.index),
            one.receipt_id,
            Text(state.lower(), style=style),
            one.due_by.replace("T", " ").removesuffix(".000Z") or "–",
            _chosen_by(one),
            outcome(one.outcome),
        )
    return Group(*([made] if listed else []), *summary(done))


def summary(done: Completeness) -> list[RenderableType]:
    """What was promised and whether it was kept, in a few lines."""
    lines: list[RenderableType] = [_promise(done)]
    counts = ", ".join(f"{count} {outcome(name)}" for name, count in done.outcomes.items() if count)
    lines.append(
        Text.from_markup(f"sampled and judged: {counts or 'none yet'}; {done.owed} owed, {done.undrawn} undrawn")
    )
    if done.unreplayable:
        lines.append(Text(f"{done.unreplayable} could not be replayed, which is no pass", style="yellow"))
    if done.unpromised:
        lines.append(Text(f"{done.unpromised} receipts stand before any policy: nothing was promised", style="dim"))
    if done.problem is not None:
        lines.append(Text(done.problem, style="bold red"))
    elif done.policies:
        lines.append(Text("the promise is kept so far", style="green"))
    return lines


def _promise(done: Completeness) -> RenderableType:
    if not done.policies:
        return Text("no auditor has announced a policy: nothing is promised", style="yellow")
    index, policy = done.policies[-1]
    earlier = f"; {len(done.policies) - 1} policies before it" if len(done.policies) > 1 else ""
    return Text(
        f"promised in entry {index}: {policy.rate:g} of all receipts, within {policy.within_seconds} s{earlier}"
    )


def _chosen_by(one: Obligation) -> str:
    if one.draw_index is not None:
        return f"[dim]draw {one.draw_index}, rate {one.rate:g}[/]"
    if not one.sampled:
        return "[dim]not drawn yet[/]"
    return "[dim]all are[/]" if one.rate == 1.0 else escape("its own issuer")
