"""Halts and their resumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape

from services.cli.terminal.output import short, table

if TYPE_CHECKING:
    from pathlib import Path

    from services.cli.jobs.drill.steps import Seen
    from services.cli.jobs.resumes import Resumed, SignedResume
    from services.client.ledger.log import Halt, HaltState


def halts_json(state: HaltState) -> dict[str, Any]:
    """The open halts; `epoch` counts all that there have been."""
    return {"epoch": state.epoch, "halts": [_halt_json(halt) for halt in state.halts]}


def _halt_json(halt: Halt) -> dict[str, Any]:
    scope = halt.scope
    return {
        "halt_index": halt.halt_index,
        "verdict_index": halt.verdict_index,
        "scope": {"base_cid": scope.base_cid, "method": scope.method, "head_cid": scope.head_cid},
        "reason": halt.reason,
    }


def halts_view(state: HaltState) -> RenderableType:
    """One line for each open halt."""
    if not state.halts:
        return f"nothing is halted; {state.epoch} halts so far"
    made = table("halt", "verdict", "method", "base", "why", right=("halt", "verdict"))
    for halt in state.halts:
        index, verdict, scope = str(halt.halt_index), str(halt.verdict_index), halt.scope
        made.add_row(index, verdict, scope.method, short(scope.base_cid), escape(halt.reason))
    return made


def signed_json(signed: SignedResume, needed: int) -> dict[str, Any]:
    """A resume in a file, and how many signatures it has and needs."""
    return {"halt_index": signed.document.halt_index, "signatures": signed.signatures, "needed": needed}


def signed_view(signed: SignedResume, needed: int) -> RenderableType:
    """The same for people."""
    document = signed.document
    what = f"signed the resume of halt {document.halt_index}, {document.scope.method}: {document.reason!r}"
    return f"{what}; {signed.signatures} of {needed} signatures"


def resumed_json(resumed: Sequence[Resumed]) -> list[dict[str, Any]]:
    """The entries of halts and of their resumes."""
    return [{"halt_index": each.halt_index, "resume_index": each.resume_index} for each in resumed]


def resumed_view(resumed: Sequence[Resumed]) -> RenderableType:
    """One line for each resume."""
    lines = (f"resumed {each.method}: halt {each.halt_index}, resume is entry {each.resume_index}" for each in resumed)
    return "\n".join(lines)


def drill_opening(folder: Path) -> str:
    """What the drill is about to do."""
    return (
        "[bold]DRILL.[/] Ledger, generation service, auditor and registry start with keys of their own in "
        f"{escape(str(folder))}; their log is named drill.invalid, their model has random weights, and its arithmetic "
        "will be broken on purpose. Nothing of yours is touched. The first start on a machine compiles code for half a "
        "minute."
    )


def seen_view(number: int, seen: Seen) -> RenderableType:
    """One step, as it has happened."""
    entry = "" if seen.entry is None else f" [dim](entry {seen.entry} of the drill's log)[/]"
    return f"\n[green]✓[/] [bold]{number}. {seen.name}[/]{entry}\n  {escape(seen.said)}"


def drill_summary(steps: Sequence[Seen]) -> str:
    """The end of a drill whose steps have all happened."""
    return (
        f"\nSeen: {', '.join(step.name for step in steps)}. Everything is stopped, and the drill's folder is removed. "
        "On a real log `kolm halts list` shows what is halted, `kolm receipts show` a receipt with its verdict, "
        "`kolm replay` computes it again, `kolm halts resume` ends the halt: see docs/auditing.md."
    )


def drill_json(steps: Sequence[Seen]) -> dict[str, Any]:
    """The steps that have happened; entries are those of the drill's log, which is gone."""
    return {"drill": True, "steps": [{"name": each.name, "entry": each.entry, "said": each.said} for each in steps]}
