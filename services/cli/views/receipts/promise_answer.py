"""The log's signed answer to a promise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape

from services.cli.terminal.output import facts

if TYPE_CHECKING:
    from services.cli.jobs.receipts.promise_answer import Answered


def answer_json(found: Answered) -> dict[str, Any]:
    """Both documents; `broken` where receipts were missing once they were due."""
    return {
        "ok": not found.broken,
        "broken": found.broken,
        "missing": found.answer.missing,
        "answer": found.answer.to_document(),
        "promise": found.promise.to_document(),
    }


def answer_view(found: Answered) -> RenderableType:
    """The promise, the log's answer and the conclusion."""
    promise, answer = found.promise, found.answer
    missing = len(answer.missing)
    held = f"{promise.choices - missing} of {promise.choices} receipts, in a tree of {answer.tree_size} entries"
    state = "[bold red]BROKEN[/]: receipts were missing when they were due, by the log's own word"
    if not found.broken:
        state = "not due when the log answered" if missing else "[green]KEPT[/], by the log's own word"
    return facts(
        ("promised", f"{promise.promised_at} for {escape(promise.tenant)}, due {promise.due}"),
        ("request", escape(promise.request_id)),
        ("answered", f"{answer.answered_at}: {held}"),
        ("state", state),
    )
