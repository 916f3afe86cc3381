"""`kolm generate`: text for a prompt, with a signed receipt."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from ledger.durable_file import write_durably
from ledger.encoding.text_forms import encode_base64
from ledger.log.receipt_filter import ReceiptFilter
from services.cli.frame import exits, options
from services.cli.frame.exits import Failed, UsageError
from services.cli.frame.failures import explained
from services.cli.frame.options import ledger_at
from services.cli.frame.output import print_json, remark, stderr_console
from services.cli.frame.process import (
    awaited,
    print_error,
    printable,
    reader_may_leave,
    unless_interrupted,
    until_interrupted,
)
from services.cli.frame.values import expect_new_file, expect_parent
from services.cli.frame.views import Column, Styled, table
from services.cli.generation.request_options import SAMPLING, SPECULATION, RequestOptions, read_prediction, read_prompt
from services.client.errors import KolmError
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
    Started,
    TokenLogprob,
)
from services.client.generation.request import Message, Request, SpecDecodeConfig
from services.client.generation.runtime import Runtime
from services.client.ledger.log import ReceiptEntry

_PATIENCE = 3.0  # seconds to wait for the receipts
_LACKING = frozenset(("no_head", "no_datastore", "no_draft_model"))
"""Reasons that come with every answer of a server: `kolm chat` and `kolm receipts show` explain them."""


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """The prompt, or the messages of a conversation."""

    prompt: Annotated[
        str | None, Argument(help="The prompt; - reads standard input, as does leaving it out in a pipe.")
    ] = None
    file: Annotated[Path | None, Option("--file", "-f", help="Read the prompt from a file.")] = None
    chat: Annotated[bool, Option("--chat/--raw", help="Apply the model's chat template to the prompt.")] = False
    system: Annotated[str | None, Option("--system", help="A system message; implies --chat.")] = None

    def read(self) -> str | list[Message]:
        """Raises UsageError."""
        text = read_prompt(self.prompt, self.file)
        first = [] if self.system is None else [Message("system", self.system)]
        return [*first, Message("user", text)] if self.chat or first else text


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Where an answer goes: the terminal, and files."""

    save: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write a receipt file: prompt, output, receipt and proof, for kolm verify."),
    ] = None
    stream: Annotated[
        bool | None, Option("--stream/--no-stream", help="Print text as it arrives. Default: on a terminal.")
    ] = None
    promise: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write the promise of a receipt, before the first token, for `kolm receipts promised` and `verify`.",
        ),
    ] = None

    def is_live(self, n: int | None, *, as_json: bool) -> bool:
        """Whether text is printed as it arrives. Raises UsageError for contradicting options."""
        several = n is not None and n > 1
        if self.stream and as_json:
            raise UsageError("--stream prints text as it arrives, --json one object at the end: choose one")
        if self.stream and several:
            raise UsageError("--stream shows one choice as it arrives: leave out --n, or use --no-stream")
        return sys.stdout.isatty() and not as_json and not several if self.stream is None else self.stream

    def check_files(self, n: int | None) -> None:
        """Raises UsageError for files that could not be written after the answer."""
        if self.save is not None:
            if n is not None and n > 1:
                raise UsageError("--save: a receipt file is about one choice; leave out --n")
            expect_new_file("--save", self.save)
        if self.promise is not None:
            expect_parent("--promise", self.promise)
            if self.save is not None and self.save.absolute() == self.promise.absolute():
                raise UsageError(f"--promise: {self.promise} is the file of --save too; name another file")


PROMPT, ANSWER = PromptOptions(), AnswerOptions()


@dataclass(frozen=True, slots=True)
class _Call:
    """A request to send, and the file for its promise."""

    runtime: Runtime
    request: Request
    spec_decode: SpecDecodeConfig
    timeout: float
    promise: Path | None


def generate(
    asked: RequestOptions,
    given: PromptOptions = PROMPT,
    prediction: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="The output that you expect, such as a file before an edit; matching parts are faster.",
            rich_help_panel=SPECULATION,
        ),
    ] = None,
    n: Annotated[
        int | None, Option("--n", "-n", help="Choices to generate, up to 16.", rich_help_panel=SAMPLING)
    ] = None,
    logprobs: Annotated[
        int | None,
        Option(
            "--logprobs",
            help="Show log probabilities of tokens and of N alternatives, up to 20.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    request_id: Annotated[str, Option(help="Your name for the request; goes into the receipt.")] = "",
    nonce: Annotated[str, Option(help="A word of your own; goes into the receipt.")] = "",
    answer: AnswerOptions = ANSWER,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    json: options.Json = False,
) -> None:
    """Generate text with a signed receipt. The text goes to stdout, the summary to stderr."""
    live = answer.is_live(n, as_json=json)
    answer.check_files(n)
    sent = given.read()
    request = replace(
        asked.request(n, logprobs),
        prompt=sent if isinstance(sent, str) else None,
        messages=None if isinstance(sent, str) else sent,
        request_id=request_id or f"generate-{uuid.uuid4().hex[:12]}",  # finds its receipt after Ctrl-C
        nonce=nonce,
        prediction=read_prediction(prediction),
    )
    spec_decode = asked.spec_decode()
    try:
        with Runtime.connect(generation) as runtime:  # leaving early closes it, which cancels the request
            call = _Call(runtime, request, spec_decode, asked.timeout, answer.promise)
            ended: Sequence[Choice | Finished] = _stream(call) if live else _serve(call, as_json=json)
    except KeyboardInterrupt:
        _show_interrupted(request.request_id, n or 1, ledger)
        raise typer.Exit(exits.INTERRUPTED) from None
    if answer.save is not None and (receipt := ended[0].receipt) is not None:
        _save(answer.save, receipt, sent, ledger)
    _check_whole([each.finish_reason for each in ended])


def _stream(call: _Call) -> Sequence[Finished]:
    started = time.monotonic()
    events = until_interrupted(call.runtime.stream(call.request, spec_decode=call.spec_decode, timeout=call.timeout))
    with closing(events):
        finished = show_stream(_keeping(call.promise, events), started)
    if finished is None:
        raise Failed("the stream ended before the text did")
    return [finished]


def _serve(call: _Call, *, as_json: bool) -> Sequence[Choice]:
    on_promise = None if call.promise is None else partial(_keep, call.promise)
    started = time.monotonic()
    with stderr_console().status("generating") if sys.stderr.isatty() else nullcontext():
        completion = unless_interrupted(
            lambda: call.runtime.serve(
                call.request, spec_decode=call.spec_decode, timeout=call.timeout, on_promise=on_promise
            ),
            call.runtime.close,
        )
    elapsed = time.monotonic() - started

    if as_json:
        print_json(completion_document(completion))
    else:
        with reader_may_leave(sys.stdout):
            show_completion(completion, elapsed)
    return completion.choices


def _show_interrupted(request_id: str, choices: int, ledger: str) -> None:
    """Print the receipts of an interrupted request, on a new line of a terminal, after its ^C."""
    found = ", ".join(f"{each.receipt_id} (entry {each.index})" for each in receipts_of(request_id, choices, ledger))
    later = f"if it had begun, its receipt is on its way: kolm receipts list --request-id {printable(request_id)}"
    known = f"receipt of the output until then: {found}" if found else later
    print_error(f"{chr(10) if sys.stderr.isatty() else ''}interrupted; {known}")


def _save(path: Path, receipt: Receipt, sent: str | list[Message], ledger: str) -> None:
    from services.cli.ledger.receipt_files import save

    why = save(path, receipt, sent, ledger)
    remark(Styled(f"saved {path}{f', without a proof: {why}' if why else ''}", "dim"))


def _keeping(path: Path | None, events: Iterable[Event]) -> Iterator[Event]:
    """The events; the promise among them is written to `path`."""
    for event in events:
        if path is not None and isinstance(event, Started):
            _keep(path, event.promise)
        yield event


def _keep(path: Path, promise: bytes | None) -> None:
    if promise is None:
        raise Failed("the server promises no receipt", "leave out --promise, or ask a server that makes promises")
    try:
        write_durably(path, promise, mode=0o644)
    except OSError as error:
        raise Failed(f"--promise: cannot write {path}: {error.strerror}") from None


def _check_whole(finish_reasons: Sequence[str]) -> None:
    """Raises Failed if an output ended early, so that a script does not take half a text for a whole one."""
    if cut := [reason for reason in finish_reasons if reason not in ("stop", "length")]:
        raise Failed(f"the server ended the output early ({cut[0]}); the receipt covers the output so far")


def receipts_of(request_id: str, choices: int, ledger: str) -> list[ReceiptEntry]:
    """The receipts that the ledger has within a few seconds; none if it does not answer, or nothing had begun."""
    found: list[ReceiptEntry] = []
    with suppress(KolmError), ledger_at(ledger) as client:

        def all_there() -> bool | None:
            found[:] = client.receipts(ReceiptFilter(request_id=request_id))
            return len(found) >= choices or None

        awaited(all_there, _PATIENCE)
    return found


def show_stream(events: Iterable[Event], started: float) -> Finished | None:
    """Print text as it arrives, then a summary; returns the stream's last event, None if it never came.

    `started` is the time of the request, by `time.monotonic`.
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
    """Print every choice with a summary; `elapsed` are the seconds since the request."""
    several = len(completion.choices) > 1
    write = text_writer()
    for choice in completion.choices:
        if several:
            stderr_console().rule(f"choice {choice.index}", align="left", style="dim")
        write(choice.text + "\n")
        _show_logprobs(choice.logprobs)
        _summarise(
            len(choice.token_ids), choice.finish_reason, choice.metrics, choice.receipt, None if several else elapsed
        )


def text_writer() -> Callable[[str], None]:
    """A writer of unbuffered text; a terminal gets no control characters from a model."""
    shown: Callable[[str], str] = printable if sys.stdout.isatty() else str

    def write(text: str) -> None:
        sys.stdout.write(shown(text))
        sys.stdout.flush()

    return write


def _position(position: PositionLogprobs) -> dict[str, Any]:
    return {"chosen": _token(position.chosen), "top": [_token(each) for each in position.top]}


def _token(token: TokenLogprob) -> dict[str, Any]:
    """Members of every token; a part of a character also has `bytes`, a special token `special`."""
    document = {"token_id": token.token_id, "text": token.text, "logprob": token.logprob}
    if token.token_bytes:
        document["bytes"] = list(token.token_bytes)
    return document | ({"special": True} if token.special else {})


def _show_logprobs(positions: Sequence[PositionLogprobs]) -> None:
    if not positions:
        return
    remark(
        table(
            positions,
            Column("token", lambda each: repr(each.chosen.text)),
            Column("logprob", lambda each: f"{each.chosen.logprob:.3f}", right=True),
            Column("others", lambda each: ", ".join(f"{other.text!r} {other.logprob:.3f}" for other in each.top)),
        )
    )


def _summarise(
    tokens: int, finish_reason: str, metrics: Metrics, receipt: Receipt | None, elapsed: float | None
) -> None:
    ends = {"stop": "stopped", "length": "reached --max-tokens"}.get(finish_reason, finish_reason)
    took = f"{speed(tokens, metrics, elapsed)}, {ends}"
    why = None if metrics.fallback_reason in _LACKING else explained(metrics.fallback_reason)
    remark(*(Styled(line, "dim") for line in (took, _method(metrics), why, _receipt(receipt)) if line is not None))


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


def completion_document(completion: Completion) -> dict[str, Any]:
    """The only choice's members at the top; several choices are under `choices`, each with its own members."""
    whole = {
        "usage": asdict(completion.usage) | {"total_tokens": completion.usage.total_tokens},
        "metrics": asdict(completion.metrics),
        "resolved": _resolved(completion.resolved),
    }
    if len(completion.choices) == 1:
        return _choice(completion.choices[0]) | whole
    choices = [
        {"index": choice.index} | _choice(choice) | {"metrics": asdict(choice.metrics)} for choice in completion.choices
    ]
    return {"choices": choices} | whole


def _choice(choice: Choice) -> dict[str, Any]:
    logprobs = {"logprobs": [_position(each) for each in choice.logprobs]} if choice.logprobs else {}
    return logprobs | {
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "receipt": receipt_document(choice.receipt),
        "ledger_index": None if choice.receipt is None else choice.receipt.ledger_index,
    }


def receipt_document(receipt: Receipt | None) -> dict[str, Any] | None:
    """The receipt of an answer, with its document and the bytes that were signed."""
    from services.cli.ledger.receipts import envelope_document

    if receipt is None:
        return None
    return {"receipt_id": receipt.receipt_id, "pending": receipt.pending, **envelope_document(receipt.envelope)}


def _resolved(resolved: Resolved) -> dict[str, Any]:
    value = asdict(resolved) | {"prompt_salt": encode_base64(resolved.prompt_salt)}
    bias = value["sampling"].pop("logit_bias", None)
    if bias:
        value["sampling"]["logit_bias"] = {str(token): number for token, number in bias.items()}
    return value


def speed(tokens: int, metrics: Metrics, seconds: float | None) -> str:
    """The whole time, the time to the first token, the speed of decoding, and the time after the last token.

    The caller waited `seconds`. The time after the last token is that of the receipt, of an inline replay before it,
    and of the network. None, for one choice of several, leaves that out.
    """
    first, decode = round(metrics.first_token_seconds, 2), round(metrics.decode_seconds, 2)
    count = f"{tokens} token{'' if tokens == 1 else 's'}"
    if not first and not decode:
        return count if seconds is None else f"{count} in {seconds:.2f} s"
    after = 0.0 if seconds is None else max(round(seconds - first - decode, 2), 0.0)
    parts = [f"first after {first:.2f} s"] if first else []
    if tokens > 1 and metrics.decode_seconds > 0:
        parts.append(f"{(tokens - 1) / metrics.decode_seconds:.0f} tokens/s for {decode:.2f} s")
    if after:
        parts.append(f"receipt {after:.2f} s later")
    return f"{count} in {first + decode + after:.2f} s ({', '.join(parts)})"
