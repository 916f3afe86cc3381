"""`kolm chat`: a conversation with a receipt for every answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli import options, request_options


def chat(
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="At the end, write the conversation with its receipts: a new folder, .tar.gz, .tar or .zip.",
        ),
    ] = None,
    max_tokens: request_options.MaxTokens = None,
    temperature: request_options.Temperature = None,
    top_p: request_options.TopP = None,
    top_k: request_options.TopK = None,
    min_p: request_options.MinP = None,
    seed: request_options.Seed = None,
    stop: request_options.Stop = None,
    method: request_options.Method = None,
    k: request_options.K = None,
    eagle_head: request_options.EagleHead = None,
    parameter: request_options.MethodParameters = None,
    verify: request_options.Verify = None,
    workload: request_options.Workload = None,
    model: request_options.ModelName = None,
    adapter: request_options.Adapter = None,
    tenant: request_options.Tenant = "",
    timeout: request_options.Timeout = 600.0,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    registry: options.Registry = options.REGISTRY,
    auditor_secret: options.AuditorSecret = None,
    data_dir: options.DataDir = options.DATA_DIR,
    trusted: options.Trusted = None,
    json: options.Json = False,
) -> None:
    """Talk with the model; every answer has a signed receipt. Piped input gets one answer for each line."""
    from rich.markup import escape

    from services.cli.commands.chat.dialogue import COMMANDS, Dialogue, Terms
    from services.cli.jobs.chat.conversation import Conversation
    from services.cli.jobs.chat.lines import piped_lines, typed_lines
    from services.cli.jobs.chat.session import Session, Wishes
    from services.cli.jobs.chat.transcript_export import Sources
    from services.cli.jobs.ledger.bundle_export import check_new
    from services.cli.output import talk
    from services.cli.views.chat import greeting
    from services.client import Request, Runtime, SamplingParams, SpecDecodeConfig

    if save is not None:
        check_new(save)
    sampling = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        seed=seed,
    )
    wishes = Wishes(
        Request(sampling=sampling, model=model, adapter=adapter, tenant=tenant, workload=workload),
        SpecDecodeConfig(
            method=method,
            eagle_head=eagle_head,
            k=k,
            verify=verify,
            parameters=request_options.method_parameters(parameter or []),
        ),
        timeout,
    )
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not json
    with Runtime.connect(generation) as runtime:
        info = runtime.model_info()
        terms = Terms(
            interactive=interactive,
            as_json=json,
            methods=tuple(dict.fromkeys(("off", *info.methods))),
            trusted=trusted or data_dir / "trusted",
            sources=Sources(ledger, registry, auditor_secret),
        )
        session = Session(runtime, Conversation(system), wishes, info.context_length)
        dialogue = Dialogue(session, terms)
        if interactive:
            talk().print(f"[dim]{escape(greeting(info))}[/]", soft_wrap=True)
        try:
            dialogue.run(typed_lines(tuple(COMMANDS), dialogue.interrupted) if interactive else piped_lines())
        finally:
            if save is not None and session.conversation.turns:
                dialogue.save(save)
