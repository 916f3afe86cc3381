"""`kolm generate`: a prompt in, text out, and the receipt that goes with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import options
from services.cli.exits import UsageError

if TYPE_CHECKING:
    from services.client import Request, SamplingParams

_SAMPLING, _SPECULATION = "Sampling (defaults are the server's)", "Speculation (never changes the text)"


def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="Lay the prompt out by the model's chat template.")
    ] = False,
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
    tenant: Annotated[str, typer.Option(help="On whose behalf; goes into the receipt.")] = "",
    request_id: Annotated[str, typer.Option(help="Your name for the request; goes into the receipt.")] = "",
    stream: Annotated[
        bool | None, typer.Option("--stream/--no-stream", help="Print text as it comes. Default: on a terminal.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Give up after this many seconds.")] = 600.0,
    generation: options.Generation = options.GENERATION,
    json: options.Json = False,
) -> None:
    """Generate text with a signed receipt. Text goes to stdout, what there is to say about it to stderr."""
    from services.cli.views.completion import run
    from services.client import SamplingParams, SpecDecodeConfig

    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        seed=seed,
        n=n,
    )
    spec_decode = SpecDecodeConfig(
        method=method, eagle_head=eagle_head, k=k, verify=verify, parameters=_parameters(parameter or ())
    )
    request = _request(prompt, file, chat, system, sampling, model, adapter, tenant, request_id, workload)
    live = _is_live(stream, json, n)
    run(generation, request, spec_decode, timeout=timeout, live=live, as_json=json)


def _parameters(given: Iterable[str]) -> dict[str, int]:
    pairs = [each.partition("=") for each in given]
    for name, _, value in pairs:
        if not name or not value.isdigit():
            raise UsageError(f"--parameter: {name}={value!s} is not NAME=VALUE with a whole number, such as window=4")
    return {name: int(value) for name, _, value in pairs}


def _request(
    prompt: str | None,
    file: Path | None,
    chat: bool,
    system: str | None,
    sampling: SamplingParams,
    model: str | None,
    adapter: str | None,
    tenant: str,
    request_id: str,
    workload: str | None,
) -> Request:
    from services.cli.jobs.prompt import read_prompt
    from services.client import Message, Request

    text = read_prompt(prompt, file)
    talk = [Message("system", system)] if system is not None else []
    return Request(
        prompt=None if chat or talk else text,
        messages=[*talk, Message("user", text)] if chat or talk else None,
        sampling=sampling,
        model=model,
        adapter=adapter,
        tenant=tenant,
        request_id=request_id,
        workload=workload,
    )


def _is_live(stream: bool | None, json: bool, n: int | None) -> bool:
    import sys

    from services.cli.exits import UsageError

    if stream and json:
        raise UsageError("--stream prints text as it comes, --json one object at the end: choose one")
    if stream and n is not None and n > 1:
        raise UsageError("--stream shows one choice as it comes: leave out --n, or use --no-stream")
    return sys.stdout.isatty() and not json and n in (None, 1) if stream is None else stream
