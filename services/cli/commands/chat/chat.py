"""`kolm chat`: a conversation with a receipt for every answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options
from services.cli.options.request_options import RequestOptions
from services.cli.values.named_files import expect_room


def chat(
    asked: RequestOptions,
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="At the end, write the conversation with its receipts: a new folder, .tar.gz, .tar or .zip.",
        ),
    ] = None,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    registry: options.Registry = options.REGISTRY,
    home: options.Home = options.HOME,
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
    from services.cli.terminal.output import talk
    from services.cli.views.generation.chat import greeting
    from services.client import Runtime

    if save is not None:
        check_new(expect_room("--save", save))
    wishes = Wishes(asked.request(), asked.spec_decode(), asked.timeout)
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not json
    with Runtime.connect(generation) as runtime:
        info = runtime.model_info()
        terms = Terms(
            interactive=interactive,
            as_json=json,
            methods=tuple(dict.fromkeys(("off", *info.methods))),
            trusted=home.trusted,
            sources=Sources(ledger, registry),
        )
        session = Session(runtime, Conversation(system), wishes, info.context_length)
        dialogue = Dialogue(session, terms)
        if interactive:
            talk().print(f"[dim]{escape(greeting(info))}[/]")
        try:
            dialogue.run(typed_lines(tuple(COMMANDS), dialogue.interrupted) if interactive else piped_lines())
        finally:
            if save is not None and session.conversation.turns:
                dialogue.save(save)
