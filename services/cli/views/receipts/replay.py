"""Results of a replay of one receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.terminal.output import MARKS, outcome

if TYPE_CHECKING:
    from services.cli.jobs.receipts.replay import Replay

_UNSIGNED = "signature not checked: no trusted keys (--trusted)"


def replay_json(done: Replay) -> dict[str, Any]:
    """`signature` is null where there were no keys to check it with, `texts` where there were none to compare."""
    finding = done.finding
    return {
        "receipt_id": done.receipt.receipt_id,
        "ledger_index": done.index,
        "signature": done.signed,
        "outcome": finding.outcome,
        "verification": finding.verification,
        "tokens_compared": finding.tokens_compared,
        "deviation": None if finding.deviation is None else finding.deviation.to_document(),
        "reason": finding.reason,
        "texts": None if done.texts is None else done.texts.same,
    }


def replay_view(done: Replay) -> RenderableType:
    """The outcome first, then why."""
    finding = done.finding
    how = f" by {finding.verification}" if finding.verification else ""
    compared, tokens = finding.tokens_compared, done.receipt.output.tokens
    lines = [Text.from_markup(f"{outcome(finding.outcome, compared)}: {compared} of {tokens} tokens compared{how}")]
    if finding.reason:
        lines.append(Text(finding.reason))
    if done.texts is not None:
        lines.append(Text.from_markup(f"{MARKS[done.texts.same]} {done.texts.said}"))
    signed = "signed by a trusted key of role receipts" if done.signed else _UNSIGNED
    place = "without a proof of its place" if done.index is None else f"said to be entry {done.index}"
    lines.append(Text(f"receipt {done.receipt.receipt_id}, {place}; {signed}", style="dim"))
    return Group(*lines)
