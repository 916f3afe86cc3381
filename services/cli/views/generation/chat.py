"""Lines of `kolm chat` beside the answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from services.cli.jobs.chat.session import Answer, Session
from services.cli.views.generation.completion import receipt_json
from services.cli.views.generation.speed import speed
from services.client.generation.completion import Finished
from services.client.generation.model_info import ModelInfo


def greeting(info: ModelInfo) -> str:
    """The server that answers, and a hint at the help."""
    return f"{info.model}, {info.context_length:,} tokens of context. /help lists the commands, Ctrl-D leaves."


def help_view(commands: Iterable[tuple[str, str]]) -> RenderableType:
    """The commands with their meaning."""
    grid = Table.grid(padding=(0, 2))
    for usage, meaning in commands:
        grid.add_row(f"[bold]{escape(usage)}[/]", escape(meaning))
    return grid


def answer_line(answer: Answer, entry: int | None) -> str:
    """One line about an answer; `entry` is the place of its receipt in the ledger, if that is known."""
    receipt = "no receipt" if answer.finished and answer.finished.receipt is None else "receipt on its way"
    receipt = receipt if entry is None else f"receipt {entry}"
    if answer.finished is None:
        return f"interrupted after {answer.tokens} tokens, {receipt}"
    return ", ".join((*_speed(answer, answer.finished), _method(answer.finished), receipt, *_cut(answer.finished)))


def wishes_line(session: Session) -> str:
    """Method and seed as they will be asked for."""
    wishes = session.wishes
    seed = "the server draws it" if wishes.sampling.seed is None else wishes.sampling.seed
    return f"method {wishes.spec_decode.method or 'auto'}, seed: {seed}"


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer for programs; of an interrupted one there is neither receipt nor metrics."""
    finished = answer.finished
    return {
        "text": answer.turn.answer,
        "tokens": answer.tokens,
        "finish_reason": finished and finished.finish_reason,
        "request_id": answer.turn.request_id,
        "usage": finished and asdict(finished.usage) | {"total_tokens": finished.usage.total_tokens},
        "metrics": finished and asdict(finished.metrics),
        "receipt": finished and receipt_json(finished.receipt),
        "ledger_index": finished and finished.receipt and finished.receipt.ledger_index,
    }


def _speed(answer: Answer, finished: Finished) -> tuple[str, ...]:
    metrics = finished.metrics
    length = (f"{metrics.mean_acceptance_length:.2f} tokens a pass",) if metrics.num_draft_tokens else ()
    return (speed(finished.usage.completion_tokens, metrics, answer.seconds), *length)


def _method(finished: Finished) -> str:
    metrics = finished.metrics
    if metrics.fallback_reason:
        return f"{metrics.method} ({metrics.requested_method}: {metrics.fallback_reason})"
    return metrics.method


def _cut(finished: Finished) -> tuple[str, ...]:
    return ("cut off here",) if finished.finish_reason == "length" else ()
