"""`kolm generate`: a prompt in, text out, and the receipt that goes with it."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.failures import exits
from services.cli.failures.exits import Failed, UsageError
from services.cli.options import options
from services.cli.options.request_options import SAMPLING, SPECULATION, RequestOptions
from services.cli.values.named_files import expect_room

if TYPE_CHECKING:
    from services.client import Event, Message, Receipt, Request, Runtime, SpecDecodeConfig
    from services.client.generation.completion import Choice, Finished


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """The prompt, or the messages of a conversation."""

    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - reads standard input, as does none where it is no terminal.")
    ] = None
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None
    chat: Annotated[bool, typer.Option("--chat/--raw", help="Apply the model's chat template to the prompt.")] = False
    system: Annotated[str | None, typer.Option("--system", help="A system message; implies --chat.")] = None

    def read(self) -> str | list[Message]:
        """Raises UsageError."""
        from services.cli.jobs.prompt import read_prompt
        from services.client import Message

        text = read_prompt(self.prompt, self.file)
        first = [] if self.system is None else [Message("system", self.system)]
        return [*first, Message("user", text)] if self.chat or first else text


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The ways of an answer: to the terminal, and into files."""

    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a receipt file: prompt, output, receipt and proof, for kolm verify."),
    ] = None
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", help="Print text as it comes. Default: on a terminal.")
    ] = None
    promise: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the promise of a receipt, before the first token, for `kolm receipts promised` and `verify`.",
        ),
    ] = None

    def is_live(self, n: int | None, *, as_json: bool) -> bool:
        """Whether text is printed as it comes. Raises UsageError for ways that go against each other."""
        several = n is not None and n > 1
        if self.stream and as_json:
            raise UsageError("--stream prints text as it comes, --json one object at the end: choose one")
        if self.stream and several:
            raise UsageError("--stream shows one choice as it comes: leave out --n, or use --no-stream")
        return sys.stdout.isatty() and not as_json and not several if self.stream is None else self.stream

    def check_files(self, n: int | None) -> None:
        """Raises UsageError for files that could not be written after the answer."""
        if self.save is not None:
            from services.cli.jobs.receipts.receipt_saving import check_writable

            if n is not None and n > 1:
                raise UsageError("--save: a receipt file is about one choice; leave out --n")
            check_writable(self.save)
        if self.promise is not None:
            expect_room("--promise", self.promise)


PROMPT, ANSWER = PromptOptions(), AnswerOptions()


@dataclass(frozen=True, slots=True)
class _Call:
    """A request on its way, and the file that keeps its promise."""

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
        typer.Option(
            metavar="FILE",
            help="The output that you expect, as a file before an edit: what agrees comes faster.",
            rich_help_panel=SPECULATION,
        ),
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", "-n", help="Choices to generate, up to 16.", rich_help_panel=SAMPLING)
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option("--logprobs", help="Show those of tokens and of N others, up to 20.", rich_help_panel=SAMPLING),
    ] = None,
    request_id: Annotated[str, typer.Option(help="Your name for the request; goes into the receipt.")] = "",
    nonce: Annotated[str, typer.Option(help="A word of your own; goes into the receipt.")] = "",
    answer: AnswerOptions = ANSWER,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    json: options.Json = False,
) -> None:
    """Generate text with a signed receipt. The text goes to stdout, the summary to stderr."""
    from services.cli.jobs.prompt import read_prediction
    from services.client import Runtime

    live = answer.is_live(n, as_json=json)
    answer.check_files(n)
    sent = given.read()
    request = replace(
        asked.request(n, logprobs),
        prompt=sent if isinstance(sent, str) else None,
        messages=None if isinstance(sent, str) else sent,
        request_id=request_id or f"generate-{uuid.uuid4().hex[:12]}",  # by which its receipt is found after Ctrl-C
        nonce=nonce,
        prediction=read_prediction(prediction),
    )
    spec_decode = asked.spec_decode()
    try:
        with Runtime.connect(generation) as runtime:  # leaving early closes it, which cancels the request
            call = _Call(runtime, request, spec_decode, asked.timeout, answer.promise)
            ended: Sequence[Choice | Finished] = _stream(call) if live else _serve(call, as_json=json)
    except KeyboardInterrupt:
        _say_interrupted(request.request_id, n or 1, ledger)
        raise typer.Exit(exits.INTERRUPTED) from None
    if answer.save is not None and (receipt := ended[0].receipt) is not None:
        _save(answer.save, receipt, sent, ledger)
    _check_whole([each.finish_reason for each in ended])


def _stream(call: _Call) -> Sequence[Finished]:
    from services.cli.jobs.interruption import until_interrupted

    started = time.monotonic()
    events = until_interrupted(call.runtime.stream(call.request, spec_decode=call.spec_decode, timeout=call.timeout))
    with closing(events):
        from services.cli.views.generation.completion import show_stream  # once it is asked

        finished = show_stream(_keeping(call.promise, events), started)
    if finished is None:
        raise Failed("the stream ended before the text did")
    return [finished]


def _serve(call: _Call, *, as_json: bool) -> Sequence[Choice]:
    from services.cli.jobs.interruption import unless_interrupted

    on_promise = None if call.promise is None else partial(_keep, call.promise)
    started = time.monotonic()
    with _waiting():
        completion = unless_interrupted(
            lambda: call.runtime.serve(
                call.request, spec_decode=call.spec_decode, timeout=call.timeout, on_promise=on_promise
            ),
            call.runtime.close,
        )
    elapsed = time.monotonic() - started

    from services.cli.terminal.output import print_json
    from services.cli.views.generation.completion import completion_json, show_completion

    if as_json:
        print_json(completion_json(completion))
    else:
        show_completion(completion, elapsed)
    return completion.choices


def _say_interrupted(request_id: str, choices: int, ledger: str) -> None:
    """A terminal has ^C on its line."""
    from services.cli.jobs.receipts.left_request import receipts_of
    from services.cli.terminal.steering import printable

    found = ", ".join(f"{each.receipt_id} (entry {each.index})" for each in receipts_of(request_id, choices, ledger))
    later = f"if it had begun, its receipt is on its way: kolm receipts list --request-id {printable(request_id)}"
    said = f"receipt of what came until then: {found}" if found else later
    print(f"{chr(10) if sys.stderr.isatty() else ''}interrupted; {said}", file=sys.stderr)


def _waiting() -> AbstractContextManager[object]:
    """Shows on a terminal that something is going on."""
    if not sys.stderr.isatty():
        return nullcontext()
    from services.cli.terminal.output import talk

    return talk().status("generating")


def _save(path: Path, receipt: Receipt, sent: str | list[Message], ledger: str) -> None:
    from rich.markup import escape

    from services.cli.jobs.receipts.receipt_saving import save
    from services.cli.terminal.output import talk

    why = save(path, receipt, sent, ledger)
    talk().print(f"[dim]saved {escape(str(path))}{escape(f', without a proof: {why}' if why else '')}[/]")


def _keeping(path: Path | None, events: Iterable[Event]) -> Iterator[Event]:
    """The events, the promise among them written to `path`."""
    from services.client import Started

    for event in events:
        if path is not None and isinstance(event, Started):
            _keep(path, event.promise)
        yield event


def _keep(path: Path, promise: bytes | None) -> None:
    if promise is None:
        raise Failed("the server promises no receipt", "leave out --promise, or ask a server that makes promises")
    from ledger.durable_file import write_durably

    try:
        write_durably(path, promise, mode=0o644)
    except OSError as error:
        raise Failed(f"--promise: cannot write {path}: {error.strerror}") from None


def _check_whole(finish_reasons: Sequence[str]) -> None:
    """Raises Failed if an output ends early: a script must not take half a text for a whole one."""
    if cut := [reason for reason in finish_reasons if reason not in ("stop", "length")]:
        raise Failed(f"the server ended the output early ({cut[0]}); the receipt covers the output so far")
