"""`kolm generate`: a prompt in, text out, and the receipt that goes with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import options
from services.cli.exits import Failed, UsageError

if TYPE_CHECKING:
    from services.client import Request, Runtime, SpecDecodeConfig

_SAMPLING, _SPECULATION = "Sampling (defaults are the server's)", "Speculation (never changes the text)"


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    chat: Annotated[bool, typer.Option("--chat/--raw", help="Apply the model's chat template to the prompt.")] = False,
    system: Annotated[str | None, typer.Option("--system", help="A system message; implies --chat.")] = None,
    max_tokens: Annotated[int | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", "-t", rich_help_panel=_SAMPLING)] = None,
    top_p: Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    top_k: Annotated[int | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    min_p: Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    seed: Annotated[int | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    stop: Annotated[list[str] | None, typer.Option(help="May be repeated.", rich_help_panel=_SAMPLING)] = None,
    n: Annotated[int | None, typer.Option("--n", help="Choices to generate.", rich_help_panel=_SAMPLING)] = None,
    method: Annotated[
        str | None, typer.Option(help="auto, off or a method of the server.", rich_help_panel=_SPECULATION)
    ] = None,
    k: Annotated[int | None, typer.Option("--k", help="Draft depth in tokens.", rich_help_panel=_SPECULATION)] = None,
    eagle_head: Annotated[str | None, typer.Option(help="Head of eagle3.", rich_help_panel=_SPECULATION)] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of the method, see kolm doctor. May be repeated.", rich_help_panel=_SPECULATION),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(help="sampled, or inline: replay before the receipt is signed.", rich_help_panel=_SPECULATION),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="single_tenant, many_adapters, rag, code or structured.", rich_help_panel=_SPECULATION),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name or base_cid; the one served by default.")] = None,
    adapter: Annotated[str | None, typer.Option(help="Name or adapter_cid; the bare base by default.")] = None,
    tenant: Annotated[str, typer.Option(help="The tenant of the request; goes into the receipt.")] = "",
    request_id: Annotated[str, typer.Option(help="Your name for the request; goes into the receipt.")] = "",
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", help="Print text as it comes. Default: on a terminal.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Give up after this many seconds.")] = 600.0,
    generation: options.Generation = options.GENERATION,
    json: options.Json = False,
) -> None:
    """Generate text with a signed receipt. The text goes to stdout, the summary to stderr."""
    from services.cli.jobs.prompt import read_prompt
    from services.client import Message, Request, Runtime, SamplingParams, SpecDecodeConfig

    live = _is_live(stream, json, n)
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
    )
    spec_decode = SpecDecodeConfig(
        method=method, eagle_head=eagle_head, k=k, verify=verify, parameters=_parameters(parameter or [])
    )
    with Runtime.connect(generation) as runtime:  # leaving early, by Ctrl-C too, closes it, which cancels the request
        if live:
            _stream(runtime, request, spec_decode, timeout)
        else:
            _serve(runtime, request, spec_decode, timeout, as_json=json)


def _parameters(given: list[str]) -> dict[str, int]:
    pairs = [each.partition("=") for each in given]
    for name, equals, value in pairs:
        if not name or not value.isdecimal():
            raise UsageError(
                f"--parameter: expected NAME=VALUE with a whole number, as window=4, got {name}{equals}{value}"
            )
    return {name: int(value) for name, _, value in pairs}


def _is_live(stream: bool | None, json: bool, n: int | None) -> bool:
    several = n is not None and n > 1
    if stream and json:
        raise UsageError("--stream prints text as it comes, --json one object at the end: choose one")
    if stream and several:
        raise UsageError("--stream shows one choice as it comes: leave out --n, or use --no-stream")
    return sys.stdout.isatty() and not json and not several if stream is None else stream


def _stream(runtime: Runtime, request: Request, spec_decode: SpecDecodeConfig, timeout: float) -> None:
    from services.cli.views.completion import show_stream

    with runtime.stream(request, spec_decode=spec_decode, timeout=timeout) as events:
        finished = show_stream(events)
    if finished is None:
        raise Failed("the stream ended before the text did")
    _check_whole([finished.finish_reason])


def _serve(runtime: Runtime, request: Request, spec_decode: SpecDecodeConfig, timeout: float, *, as_json: bool) -> None:
    from services.cli.output import print_json, talk
    from services.cli.views.completion import completion_json, show_completion

    with talk().status("generating"):
        completion = runtime.serve(request, spec_decode=spec_decode, timeout=timeout)
    if as_json:
        print_json(completion_json(completion))
    else:
        show_completion(completion)
    _check_whole([choice.finish_reason for choice in completion.choices])


def _check_whole(finish_reasons: Sequence[str]) -> None:
    """Raises Failed if an output ends early: a script must not take half a text for a whole one."""
    if cut := [reason for reason in finish_reasons if reason not in ("stop", "length")]:
        raise Failed(f"the server ended the output early ({cut[0]}); the receipt covers the output so far")
