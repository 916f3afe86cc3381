"""Lines of `kolm chat` beside the answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from services.cli.jobs.chat import Answer
from services.cli.views.generation.completion import receipt_json
from services.cli.views.generation.speed import speed
from services.client.generation.completion import Finished


def answer_line(answer: Answer) -> str:
    """One line about an answer, with its receipt's entry in the ledger where that is known."""
    if answer.finished is None:
        kept = "receipt on its way" if answer.turn.answer else "the question is not kept"
        return f"interrupted after {answer.tokens} tokens, {kept}"
    signed = answer.finished.receipt
    entry = None if signed is None else signed.ledger_index
    receipt = "no receipt" if signed is None else "receipt on its way" if entry is None else f"receipt {entry}"
    return ", ".join((*_speed(answer, answer.finished), _method(answer.finished), receipt, *_cut(answer.finished)))


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
