"""`kolm up`: ledger, registry, generation, auditor and the auditor's page on this machine, in the foreground."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import options
from services.cli.exits import Failed, UsageError

if TYPE_CHECKING:
    from services.cli.jobs.running.local_services import Addresses, LocalServices
    from services.cli.jobs.running.supervisor import Line, Supervisor

_GRACE_SECONDS = 20.0
_PAGE_PORT = 50056
_COLOURS = {"ledger": "cyan", "generation": "green", "auditor": "magenta", "registry": "yellow", "explorer": "blue"}

Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.", show_default=True)]


def up(
    data_dir: options.DataDir = options.DATA_DIR,
    model: options.Model = Path("smollm2"),
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="LoRA adapter in peft's layout; may be repeated."),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="HEAD", help="Draft head: a reference, or a folder. Default: the registry's newest."),
    ] = None,
    context_length: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="TOKENS", help="Longest prompt with its output. Default: the model's own, at most 8192."
        ),
    ] = None,
    cache_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory for keys, values and cached prefixes, such as 4GiB. Default: 1GiB."),
    ] = None,
    draft_model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|GGUF|NAME",
            callback=options.found_model,
            help="A smaller model with the same tokenizer, for the method draft.",
        ),
    ] = None,
    shared_corpus: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Datastore for the method rest, for all tenants; may be repeated."),
    ] = None,
    embedder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Sentence-transformers directory of datastores that were built with one."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    generation_port: Port = 50051,
    ledger_port: Port = 50052,
    auditor_port: Port = 50053,
    registry_port: Port = 50054,
    explorer_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 takes a free one. Default: 50056, or a free one.")
    ] = None,
    explorer: Annotated[bool, typer.Option(help="Serve the auditor's page as well.")] = True,
    audit_rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of receipts that are replayed.")] = 0.1,
    json: options.Json = False,
) -> None:
    """Run all services until Ctrl-C. If one of them dies, all stop, with its reason and exit code 1."""
    from services.cli.jobs.running.local_services import LocalServices

    check_model(model)
    flags = (
        *adapter_flags(adapter or []),
        *(word for each in head or [] for word in ("--head", each)),
        *(("--context-length", str(context_length)) if context_length else ()),
        *(("--cache-bytes", cache_bytes) if cache_bytes else ()),
        *(("--draft-model", str(draft_model)) if draft_model else ()),
        *(word for each in shared_corpus or [] for word in ("--shared-corpus", str(each))),
        *(("--embedder", str(embedder)) if embedder else ()),
    )
    ports = (generation_port, ledger_port, auditor_port, registry_port)
    page = _page_port(host, explorer_port) if explorer else None
    services = LocalServices(data_dir, model, host, *ports, audit_rate, generation_flags=flags, explorer_port=page)
    _run(services, as_json=json)


def _page_port(host: str, asked: int | None) -> int:
    """The port for the auditor's page: nobody's services should fail to start for it."""
    if asked is not None:
        return asked
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), _PAGE_PORT))
        except OSError:
            return 0
    return _PAGE_PORT


def check_model(model: Path) -> None:
    """Raises UsageError where there is no model to serve."""
    if model.is_file() or (model / "config.json").is_file():
        return
    raise UsageError(f"--model: no model in {model}", "name a transformers directory, a GGUF file or smollm2")


def adapter_flags(adapters: list[str]) -> tuple[str, ...]:
    """The generation service's flags for NAME=DIR each. Raises UsageError where one is none, or has no directory."""
    for adapter in adapters:
        name, equals, directory = adapter.partition("=")
        if not (name and equals) or not (Path(directory) / "adapter_config.json").is_file():
            hint = "name a directory with adapter_config.json and adapter_model.safetensors"
            raise UsageError(f"--adapter: expected NAME=DIR of an adapter in peft's layout, got {adapter}", hint)
    return tuple(part for adapter in adapters for part in ("--adapter", adapter))


def _run(services: LocalServices, *, as_json: bool) -> None:
    from services.cli.jobs.running.local_services import bring_up
    from services.cli.jobs.running.supervisor import NotReady, ServiceDied, StopRequested, Supervisor

    supervisor = Supervisor(prefixed_lines())
    with supervisor.listening():
        try:
            _announce(bring_up(services, supervisor), services.audit_rate, as_json)
            supervisor.wait()
        except StopRequested as request:
            _say(f"{request}: stopping")
        except (ServiceDied, NotReady) as error:
            raise Failed(f"{error}; everything was stopped", _last_words(error)) from error
        finally:
            stop(supervisor)


def stop(supervisor: Supervisor) -> None:
    """End all children; nothing that is still up is left behind."""
    supervisor.stop(_GRACE_SECONDS)


def prefixed_lines() -> Line:
    """Writes every line of a service to stderr behind its name."""
    from rich.text import Text

    from services.cli.output import talk

    console = talk()

    def show(name: str, line: str) -> None:
        prefix = Text(f"{name:>10} │ ", style=_COLOURS.get(name, ""))
        console.print(prefix + Text.from_ansi(line), soft_wrap=True)

    return show


def _announce(addresses: Addresses, audit_rate: float, as_json: bool) -> None:
    from dataclasses import asdict

    from services.cli.output import print_json

    if as_json:
        print_json(asdict(addresses))
        return
    _say(f"ready: generation {addresses.generation}, ledger {addresses.ledger}, auditor {addresses.auditor}")
    _say(f"       registry {addresses.registry}")
    if addresses.explorer is not None:
        _say(f"       the auditor's page: http://{addresses.explorer}/")
    _say(f"{audit_rate:.0%} of all receipts are replayed with speculation off; `kolm audit run` replays the rest")
    _say('try: kolm generate "def add(a, b):"      Ctrl-C stops everything')


def _say(line: str) -> None:
    from services.cli.output import talk

    talk().print(f"[bold]{'kolm':>10} │[/] {line}", soft_wrap=True)


def _last_words(error: Exception) -> str | None:
    from services.cli.jobs.running.supervisor import ServiceDied

    lines = [line for line in error.last_lines if line.strip()] if isinstance(error, ServiceDied) else []
    return f"its last words: {lines[-1]}" if lines else None
