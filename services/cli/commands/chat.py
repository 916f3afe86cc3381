"""`kolm chat`: a conversation with a receipt for every answer."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.failures.exits import UsageError
from services.cli.options import options
from services.cli.options.request_options import RequestOptions
from services.cli.values.named_files import expect_room

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.cli.jobs.chat import Conversation


def chat(
    asked: RequestOptions,
    system: Annotated[str | None, typer.Option("--system", help="A system message.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="At the end, write the conversation with its receipts: a new folder, .tar.gz or .tar.",
        ),
    ] = None,
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """Talk with the model; every answer has a signed receipt. Piped input gets one answer for each line. Lines that
    are no question: /method NAME, /save FILE, /quit.
    """
    from services.cli.failures.failure import explain
    from services.cli.jobs.chat import Conversation
    from services.cli.jobs.ledger.bundle_export import check_new
    from services.cli.terminal.output import talk
    from services.client import Runtime

    if save is not None:
        check_new(expect_room("--save", save))
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not json
    with Runtime.connect(generation) as runtime:
        conversation = Conversation(runtime, asked.request(), asked.spec_decode(), asked.timeout, system)
        if interactive:
            talk().print(f"[dim]{conversation.model}. /method NAME, /save FILE; /quit or Ctrl-D leaves.[/]")
        try:
            for line in _typed() if interactive else (line.strip() for line in sys.stdin):
                if line == "/quit":
                    break
                try:
                    _take(line, conversation, (ledger, registry), interactive=interactive, as_json=json)
                except Exception as error:
                    if not interactive:
                        raise
                    explain(error)
        finally:
            if save is not None and conversation.turns:
                _save(conversation, save, (ledger, registry))


def _typed() -> Iterator[str]:
    """Lines from a terminal until Ctrl-D; nothing is kept on disk, for it may be private."""
    with suppress(ImportError):  # there is none on Windows
        import readline  # noqa: F401  (which edits the lines of input())
    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            return print()
        except KeyboardInterrupt:
            print("\n/quit or Ctrl-D leaves", file=sys.stderr)


def _take(line: str, conversation: Conversation, places: tuple[str, str], *, interactive: bool, as_json: bool) -> None:
    match line.split(maxsplit=1):
        case []:
            return
        case ["/method", name]:
            conversation.use(name)
        case ["/save", name]:
            _save(conversation, Path(name).expanduser(), places)
        case ["/method" | "/save" as word]:
            raise UsageError(f"{word}: expected a name behind it")
        case _:
            _ask(line, conversation, interactive=interactive, as_json=as_json)


def _ask(question: str, conversation: Conversation, *, interactive: bool, as_json: bool) -> None:
    from services.cli.terminal.output import print_json, talk
    from services.cli.views.generation.chat import answer_json, answer_line
    from services.cli.views.generation.completion import text_writer

    write = (lambda text: None) if as_json else text_writer()
    answer = conversation.ask(question, write)
    if answer.turn.answer or answer.finished is not None:
        write("\n")
    if answer.finished is None and not interactive:
        raise KeyboardInterrupt
    if as_json:
        print_json(answer_json(answer))
    else:
        talk().print(answer_line(answer), style="dim", markup=False, soft_wrap=not interactive)


def _save(conversation: Conversation, path: Path, places: tuple[str, str]) -> None:
    from rich.markup import escape

    from services.cli.terminal.output import talk

    for lacking in conversation.save(path, *places):
        talk().print(f"[yellow]not in {escape(str(path))}:[/] {escape(lacking)}", soft_wrap=True)
    talk().print(f"[dim]{escape(f'saved; check it with: kolm verify {path} --model MODEL')}[/]", soft_wrap=True)
