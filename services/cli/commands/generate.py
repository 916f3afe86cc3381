"""`kolm generate`: a prompt in, text out, and the receipt that goes with it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import options, request_options
from services.cli.exits import Failed, UsageError

if TYPE_CHECKING:
    from services.client import Event, Message, Receipt, Request, Runtime, SpecDecodeConfig
    from services.client.completion import Choice, Finished


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    chat: Annotated[bool, typer.Option("--chat/--raw", help="Apply the model's chat template to the prompt.")] = False,
    system: Annotated[str | None, typer.Option("--system", help="A system message; implies --chat.")] = None,
    max_tokens: request_options.MaxTokens = None,
    temperature: request_options.Temperature = None,
    top_p: request_options.TopP = None,
    top_k: request_options.TopK = None,
    min_p: request_options.MinP = None,
    seed: request_options.Seed = None,
    stop: request_options.Stop = None,
    n: Annotated[
        int | None,
        typer.Option("--n", help="Choices to generate.", rich_help_panel=request_options.SAMPLING),
    ] = None,
    method: request_options.Method = None,
    k: request_options.K = None,
    eagle_head: request_options.EagleHead = None,
    parameter: request_options.MethodParameters = None,
    verify: request_options.Verify = None,
    workload: request_options.Workload = None,
    model: request_options.ModelName = None,
    adapter: request_options.Adapter = None,
    tenant: request_options.Tenant = "",
    request_id: Annotated[str, typer.Option(help="Your name for the request; goes into the receipt.")] = "",
    nonce: Annotated[str, typer.Option(help="A word of your own; goes into the receipt.")] = "",
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a receipt file: prompt, output, receipt and proof, for kolm verify."),
    ] = None,
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", help="Print text as it comes. Default: on a terminal.")
    ] = None,
    promise: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the promise of a receipt, before the first token, for `kolm receipts promised` and `verify`.",
        ),
    ] = None,
    timeout: request_options.Timeout = 600.0,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    json: options.Json = False,
) -> None:
    """Generate text with a signed receipt. The text goes to stdout, the summary to stderr."""
    from services.cli.jobs.prompt import read_prompt
    from services.client import Message, Request, Runtime, SamplingParams, SpecDecodeConfig

    live = _is_live(stream, json, n)
    if save is not None:
        _check_saving(save, n)
    text = read_prompt(prompt, file)
    first = [] if system is None else [Message("system", system)]
    messages = [*first, Message("user", text)] if chat or first else None
    request = Request(
        prompt=None if messages else text,
        messages=messages,
        sampling=SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            max_tokens=max_tokens,
            stop=tuple(stop or ()),
            seed=seed,
            n=n,
        ),
        model=model,
        adapter=adapter,
        tenant=tenant,
        request_id=request_id,
        workload=workload,
        nonce=nonce,
    )
    spec_decode = SpecDecodeConfig(
        method=method,
        eagle_head=eagle_head,
        k=k,
        verify=verify,
        parameters=request_options.method_parameters(parameter or []),
    )
    with Runtime.connect(generation) as runtime:  # leaving early, by Ctrl-C too, closes it, which cancels the request
        ended: Sequence[Choice | Finished]
        if live:
            ended = _stream(runtime, request, spec_decode, timeout, promise)
        else:
            ended = _serve(runtime, request, spec_decode, timeout, promise, as_json=json)
    if save is not None and (receipt := ended[0].receipt) is not None:
        _save(save, receipt, messages or text, ledger)
    _check_whole([each.finish_reason for each in ended])


def _is_live(stream: bool | None, json: bool, n: int | None) -> bool:
    several = n is not None and n > 1
    if stream and json:
        raise UsageError("--stream prints text as it comes, --json one object at the end: choose one")
    if stream and several:
        raise UsageError("--stream shows one choice as it comes: leave out --n, or use --no-stream")
    return sys.stdout.isatty() and not json and not several if stream is None else stream


def _stream(
    runtime: Runtime, request: Request, spec_decode: SpecDecodeConfig, timeout: float, promise: Path | None
) -> Sequence[Finished]:
    started = time.monotonic()
    with runtime.stream(request, spec_decode=spec_decode, timeout=timeout) as events:
        from services.cli.views.completion import show_stream  # once it is asked

        finished = show_stream(_keeping(promise, events), started)
    if finished is None:
        raise Failed("the stream ended before the text did")
    return [finished]


def _serve(
    runtime: Runtime,
    request: Request,
    spec_decode: SpecDecodeConfig,
    timeout: float,
    promise: Path | None,
    *,
    as_json: bool,
) -> Sequence[Choice]:
    started = time.monotonic()
    with _waiting():
        on_promise = None if promise is None else partial(_keep, promise)
        completion = runtime.serve(request, spec_decode=spec_decode, timeout=timeout, on_promise=on_promise)
    elapsed = time.monotonic() - started

    from services.cli.output import print_json
    from services.cli.views.completion import completion_json, show_completion

    if as_json:
        print_json(completion_json(completion))
    else:
        show_completion(completion, elapsed)
    return completion.choices


def _waiting() -> AbstractContextManager[object]:
    """Shows on a terminal that something is going on."""
    if not sys.stderr.isatty():
        return nullcontext()
    from services.cli.output import talk

    return talk().status("generating")


def _check_saving(path: Path, n: int | None) -> None:
    from services.cli.jobs.receipt_saving import check_writable

    if n is not None and n > 1:
        raise UsageError("--save: a receipt file is about one choice; leave out --n")
    check_writable(path)


def _save(path: Path, receipt: Receipt, sent: str | list[Message], ledger: str) -> None:
    from rich.markup import escape

    from services.cli.jobs.receipt_saving import save
    from services.cli.output import talk

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
    path.write_bytes(promise)


def _check_whole(finish_reasons: Sequence[str]) -> None:
    """Raises Failed if an output ends early: a script must not take half a text for a whole one."""
    if cut := [reason for reason in finish_reasons if reason not in ("stop", "length")]:
        raise Failed(f"the server ended the output early ({cut[0]}); the receipt covers the output so far")
