"""A completion: its text, as it comes or at the end, with a summary; or one JSON object."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape

from ledger.encoding.base64_text import encode_base64
from services.cli.failures.fallbacks import explained
from services.cli.terminal.output import table, talk
from services.cli.terminal.steering import printable
from services.cli.views.generation.speed import speed
from services.cli.views.receipts.documents import envelope_json
from services.client.generation.completion import (
    Choice,
    Chunk,
    Completion,
    Event,
    Finished,
    Metrics,
    PositionLogprobs,
    Receipt,
    Resolved,
)


def show_stream(events: Iterable[Event], started: float) -> Finished | None:
    """Text as it comes, then a summary; returns the stream's last event, None if it never came.

    `started`, by `time.monotonic`, is when it was asked for.
    """
    write, finished, begun = text_writer(), None, False
    positions: list[PositionLogprobs] = []
    try:
        for event in events:
            if isinstance(event, Chunk):
                write(event.text)
                begun = True
                positions += event.logprobs
            elif isinstance(event, Finished):
                finished = event
    finally:
        if begun or finished is not None:
            write("\n")
    if finished is not None:
        _show_logprobs(positions)
        tokens, elapsed = finished.usage.completion_tokens, time.monotonic() - started
        _summarise(tokens, finished.finish_reason, finished.metrics, finished.receipt, elapsed)
    return finished


def show_completion(completion: Completion, elapsed: float) -> None:
    """Every choice, each with a summary; `elapsed` seconds after it was asked for."""
    several = len(completion.choices) > 1
    write = text_writer()
    for choice in completion.choices:
        if several:
            talk().rule(f"choice {choice.index}", align="left", style="dim")
        write(choice.text + "\n")
        _show_logprobs(choice.logprobs)
        _summarise(
            len(choice.token_ids), choice.finish_reason, choice.metrics, choice.receipt, None if several else elapsed
        )


def text_writer() -> Callable[[str], None]:
    """Writes text at once; a terminal gets no control characters from a model."""
    shown: Callable[[str], str] = printable if sys.stdout.isatty() else str

    def write(text: str) -> None:
        sys.stdout.write(shown(text))
        sys.stdout.flush()

    return write


def _show_logprobs(positions: Sequence[PositionLogprobs]) -> None:
    if not positions:
        return
    made = table("token", "logprob", "others", right=("logprob",))
    for each in positions:
        others = ", ".join(f"{other.text!r} {other.logprob:.3f}" for other in each.top)
        made.add_row(escape(repr(each.chosen.text)), f"{each.chosen.logprob:.3f}", escape(others))
    talk().print(made)


def _summarise(
    tokens: int, finish_reason: str, metrics: Metrics, receipt: Receipt | None, elapsed: float | None
) -> None:
    console = talk()
    why = explained(metrics.fallback_reason)
    for line in (_speed(tokens, finish_reason, metrics, elapsed), _method(metrics), why, _receipt(receipt)):
        if line is not None:
            console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


def _speed(tokens: int, finish_reason: str, metrics: Metrics, elapsed: float | None) -> str:
    ends = {"stop": "stopped", "length": "reached --max-tokens"}.get(finish_reason, finish_reason)
    return f"{speed(tokens, metrics, elapsed)}, {ends}"


def _method(metrics: Metrics) -> str:
    fallback = f" (asked for {metrics.requested_method}: {metrics.fallback_reason})" if metrics.fallback_reason else ""
    if metrics.method == "off" or not metrics.num_draft_tokens:
        return f"method {metrics.method}{fallback}"
    accepted = f"{metrics.num_accepted_tokens} of {metrics.num_draft_tokens} drafted tokens accepted"
    speedup = "" if metrics.wall_clock_speedup is None else f", {metrics.wall_clock_speedup:.2f}× off"
    basis = f" ({metrics.speedup_basis})" if speedup and metrics.speedup_basis else ""
    length = f"{metrics.mean_acceptance_length:.2f} tokens per pass"
    return f"method {metrics.method}{fallback}: {length}, {accepted}{speedup}{basis}"


def _receipt(receipt: Receipt | None) -> str:
    if receipt is None:
        return "no receipt"
    where = "on its way to the ledger" if receipt.ledger_index is None else f"entry {receipt.ledger_index}"
    return f"receipt {receipt.receipt_id}, {where}"


def completion_json(completion: Completion) -> dict[str, Any]:
    """The members of the only choice at the top; several choices are under `choices`, with what is theirs alone."""
    whole = {
        "usage": asdict(completion.usage) | {"total_tokens": completion.usage.total_tokens},
        "metrics": asdict(completion.metrics),
        "resolved": _resolved_json(completion.resolved),
    }
    if len(completion.choices) == 1:
        return _choice_json(completion.choices[0]) | whole
    choices = [
        {"index": choice.index} | _choice_json(choice) | {"metrics": asdict(choice.metrics)}
        for choice in completion.choices
    ]
    return {"choices": choices} | whole


def _choice_json(choice: Choice) -> dict[str, Any]:
    logprobs = {"logprobs": [asdict(each) for each in choice.logprobs]} if choice.logprobs else {}
    return logprobs | {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "receipt": receipt_json(choice.receipt),
        "ledger_index": None if choice.receipt is None else choice.receipt.ledger_index,
    }


def receipt_json(receipt: Receipt | None) -> dict[str, Any] | None:
    """The receipt of an answer, with its document and the bytes that were signed."""
    if receipt is None:
        return None
    return {"receipt_id": receipt.receipt_id, "pending": receipt.pending, **envelope_json(receipt.envelope)}


def _resolved_json(resolved: Resolved) -> dict[str, Any]:
    value = asdict(resolved) | {"prompt_salt": encode_base64(resolved.prompt_salt)}
    bias = value["sampling"].pop("logit_bias", None)
    if bias:
        value["sampling"]["logit_bias"] = {str(token): number for token, number in bias.items()}
    return value
