"""Running one request and showing what came of it: text as it comes or at the end, or one JSON object."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from rich.markup import escape

from services.cli.exits import Failed
from services.cli.output import print_json, printable, talk
from services.cli.views.completion_json import completion_json
from services.client import Chunk, Completion, Finished, Receipt, Request, Runtime, SpecDecodeConfig
from services.client.completion import Metrics


def run(
    target: str, request: Request, spec_decode: SpecDecodeConfig, *, timeout: float, live: bool, as_json: bool
) -> None:
    """Generate on the server at `target`. Leaving early, by Ctrl-C too, cancels the request: it closes the connection.

    Raises KolmError, and Failed for an output that the server has ended before its end, once it is shown.
    """
    with Runtime.connect(target) as runtime:
        if live:
            _check_whole([_show_stream(runtime, request, spec_decode, timeout)])
            return
        with talk().status("generating") if sys.stderr.isatty() else nullcontext():
            completion = runtime.serve(request, spec_decode=spec_decode, timeout=timeout)
    if as_json:
        print_json(completion_json(completion))
    else:
        _show(completion)
    _check_whole([choice.finish_reason for choice in completion.choices])


def _check_whole(finish_reasons: Sequence[str]) -> None:
    """A script must not take half a text for a whole one."""
    if cut := [reason for reason in finish_reasons if reason not in ("stop", "length")]:
        raise Failed(f"the server ended the output early ({cut[0]}); the receipt covers what there is of it")


def _show_stream(runtime: Runtime, request: Request, spec_decode: SpecDecodeConfig, timeout: float) -> str:
    """Its finish reason."""
    write, finished = _writer(), None
    started = time.monotonic()
    with runtime.stream(request, spec_decode=spec_decode, timeout=timeout) as events:
        for event in events:
            if isinstance(event, Chunk):
                write(event.text)
            elif isinstance(event, Finished):
                finished = event
    write("\n")
    if finished is None:
        raise Failed("the stream ended before the text did")
    elapsed = time.monotonic() - started
    _summarise(finished.usage.completion_tokens, finished.finish_reason, finished.metrics, finished.receipt, elapsed)
    return finished.finish_reason


def _show(completion: Completion) -> None:
    several = len(completion.choices) > 1
    write = _writer()
    for choice in completion.choices:
        if several:
            talk().rule(f"choice {choice.index}", align="left", style="dim")
        write(choice.text + "\n")
        _summarise(len(choice.token_ids), choice.finish_reason, choice.metrics, choice.receipt, None)


def _writer() -> Callable[[str], None]:
    """Writes through at once; a terminal gets no control characters from a model."""
    shown: Callable[[str], str] = printable if sys.stdout.isatty() else str

    def write(text: str) -> None:
        sys.stdout.write(shown(text))
        sys.stdout.flush()

    return write


def _summarise(
    tokens: int, finish_reason: str, metrics: Metrics, receipt: Receipt | None, elapsed: float | None
) -> None:
    console = talk()
    for line in (_speed(tokens, finish_reason, metrics, elapsed), _method(metrics), _receipt(receipt)):
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


def _speed(tokens: int, finish_reason: str, metrics: Metrics, elapsed: float | None) -> str:
    rate = f", {tokens / metrics.decode_seconds:.0f} tokens/s" if metrics.decode_seconds > 0 else ""
    total = "" if elapsed is None else f" in {elapsed:.2f} s"
    ends = {"stop": "stopped", "length": "reached --max-tokens"}.get(finish_reason, finish_reason)
    return f"{tokens} tokens{total}{rate}, {ends}"


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
