"""`kolm up`: ledger, registry, generation, auditor, their page and OpenAI's API on this machine, in the foreground."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from services.cli import options
from services.cli.exits import Failed, UsageError
from services.cli.named_files import expect_folder

if TYPE_CHECKING:
    from services.cli.jobs.running.local_services import LocalServices
    from services.cli.views.services import UpTalk

_GRACE_SECONDS = 20.0
_PAGE_PORT = 50056
_HTTP_PORT = 50057

Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.", show_default=True)]


def _defaults_from(context: typer.Context, config: Path | None) -> Path | None:
    """Settings of the generation service that the auditor has to load as well are flags here: both get them."""
    if config is not None:
        from services.cli.jobs.running.configuration import Configuration

        context.default_map = Configuration.read(config).shared_with_the_auditor()
    return config


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """What the generation service loads, and with it the auditor."""

    model: options.Model = options.MODEL
    adapter: options.Adapters = None
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="HEAD", help="Draft head: a reference, or a folder. Default: the registry's newest."),
    ] = None
    context_length: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="TOKENS", help="Longest prompt with its output. Default: the model's own, at most 8192."
        ),
    ] = None
    cache_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory for keys, values and cached prefixes, such as 4GiB. Default: 1GiB."),
    ] = None
    cache_dtype: Annotated[
        Literal["float32", "bfloat16"] | None, typer.Option(help="What keys and values are kept in.")
    ] = None
    arithmetic: Annotated[
        Literal["float32", "int8"] | None, typer.Option(help="Of linear layers with quantised weights (GGUF).")
    ] = None
    draft_model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|GGUF|NAME",
            callback=options.found_model,
            help="A smaller model with the same tokenizer, for the method draft.",
        ),
    ] = None
    shared_corpus: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Datastore for the method rest, for all tenants; may be repeated."),
    ] = None
    embedder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Sentence-transformers directory, for datastores that were built with one."),
    ] = None
    beside: Annotated[
        bool, typer.Option(help="Use the head, the adapters and the datastore beside the model, where none is named.")
    ] = True

    def adapters_beside(self) -> dict[str, Path]:
        """By name; empty where somebody named adapters or wants none."""
        from services.generation.target.beside import adapters_beside

        return {} if self.adapter or not self.beside else adapters_beside(self.model)

    def auditor_flags(self, found: dict[str, Path]) -> tuple[str, ...]:
        """What the auditor has to load as the server does; `found` are adapters that nobody named."""
        from services.cli.jobs.running.command_words import words

        return words(
            adapter=_checked_adapters(self.adapter or [f"{name}={folder}" for name, folder in found.items()]),
            context_length=self.context_length,
            cache_dtype=self.cache_dtype,
            arithmetic=self.arithmetic,
        )

    def server_flags(self) -> tuple[str, ...]:
        """What only the generation service is given. Raises UsageError for folders that are missing."""
        from services.cli.jobs.running.command_words import words

        _check_folders(self.head or [], self.shared_corpus or [], self.embedder)
        return words(
            head=self.head,
            no_beside=not self.beside,
            cache_bytes=self.cache_bytes,
            draft_model=self.draft_model,
            shared_corpus=self.shared_corpus,
            embedder=self.embedder,
        )


SERVED = ServedOptions()


def up(
    data_dir: options.DataDir = options.DATA_DIR,
    served: ServedOptions = SERVED,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="With a --host that others reach: everybody there can read all of it.")
    ] = False,
    generation_port: Port = 50051,
    ledger_port: Port = 50052,
    auditor_port: Port = 50053,
    registry_port: Port = 50054,
    explorer_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 takes a free one. Default: 50056, or a free one.")
    ] = None,
    explorer: Annotated[bool, typer.Option(help="Serve the auditor's page as well.")] = True,
    http_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 takes a free one. Default: 50057, or a free one.")
    ] = None,
    http: Annotated[bool, typer.Option(help="Serve OpenAI's API as well.")] = True,
    audit_rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of receipts that are replayed.")] = 1.0,
    audit_by_server: Annotated[
        bool,
        typer.Option(
            "--audit-by-server",
            help="The auditor believes the generation service's replays, in place of an engine of its own.",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="KOLM_CONFIG",
            metavar="FILE",
            is_eager=True,
            callback=_defaults_from,
            help="TOML with a table of settings for each service.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65530, help="Serve metrics from this port on, a port a service; 0 takes free ones."),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option(help="Of the services. Default: info.")
    ] = None,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Lines as text or JSON.")] = "text",
    json: options.Json = False,
) -> None:
    """Run all services until Ctrl-C. If one of them dies, all stop: exit code 1, with its reason."""
    from services.cli.jobs.running.command_words import words
    from services.cli.jobs.running.configuration import Configuration
    from services.cli.jobs.running.local_services import LocalServices
    from services.cli.views.services import UpTalk

    own, found = served.server_flags(), served.adapters_beside()
    same = served.auditor_flags(found)
    ports = {
        "--generation-port": generation_port,
        "--ledger-port": ledger_port,
        "--auditor-port": auditor_port,
        "--registry-port": registry_port,
        **({"--explorer-port": explorer_port} if explorer and explorer_port is not None else {}),
        **({"--http-port": http_port} if http and http_port is not None else {}),
    }
    _check_host(host, insecure=insecure)
    services = LocalServices(
        data_dir,
        served.model,
        host,
        generation_port=generation_port,
        ledger_port=ledger_port,
        auditor_port=auditor_port,
        registry_port=registry_port,
        explorer_port=_usual_port(host, explorer_port, _PAGE_PORT) if explorer else None,
        http_port=_usual_port(host, http_port, _HTTP_PORT) if http else None,
        audit_rate=audit_rate,
        audit_by_server=audit_by_server,
        auditor_flags=same,
        generation_flags=(*same, *own),
        shared_flags=words(
            insecure=insecure,
            config=config,
            log_level=log_level,
            log_format=None if log_format == "text" else log_format,
        ),
        metrics_port=metrics_port,
    )
    if config is not None:
        Configuration.read(config).refuse_what_up_sets(services.plans())
    _check_ports(host, ports | {f"--metrics-port, {name}": port for name, port in services.metrics_ports.items()})
    _run(services, found, UpTalk(log_format), as_json=json)


def _check_host(host: str, *, insecure: bool) -> None:
    """Raises UsageError for one that other machines reach, where nobody has said that they may."""
    from services.runtime.listening import is_loopback

    if not insecure and not is_loopback(host):
        hint = "kolm init writes settings with TLS for `kolm serve`; --insecure lets everybody there read all of it"
        raise UsageError(f"--host: {host} is reached from other machines, and `kolm up` speaks no TLS", hint)


def _check_ports(host: str, ports: dict[str, int]) -> None:
    """Raises UsageError for a port that is given twice, Failed for one that somebody has."""
    from services.runtime.listening import CannotListen, check_free

    for flag, port in ports.items():
        if port and list(ports.values()).count(port) > 1:
            raise UsageError(f"{flag}: {port} is given to two services")
        try:
            check_free(f"{host}:{port}")
        except CannotListen as error:
            hint = "is another `kolm up` running? `kolm health` shows it; port 0 takes a free one"
            raise Failed(f"{flag}: {error}", hint) from None


def _usual_port(host: str, asked: int | None, usual: int) -> int:
    """The port that was asked for, or the usual one: a free one if another program has it."""
    if asked is not None:
        return asked
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), usual))
        except OSError:
            return 0
    return usual


def _check_folders(heads: list[str], corpora: list[Path], embedder: Path | None) -> None:
    """Raises UsageError for one that is not there, or holds something else."""
    for corpus in corpora:
        expect_folder("--shared-corpus", corpus, "manifest.json", "a datastore")
    for head in heads:
        if "/" in head:
            expect_folder("--head", Path(head), "config.json", "a head's folder")
    if embedder is not None:
        expect_folder("--embedder", embedder, "config.json", "a sentence-transformers directory")


def _checked_adapters(adapters: list[str]) -> list[str]:
    """NAME=DIR each. Raises UsageError for other words, and missing directories."""
    for adapter in adapters:
        name, equals, directory = adapter.partition("=")
        if not (name and equals) or not (Path(directory) / "adapter_config.json").is_file():
            hint = "name a directory with adapter_config.json and adapter_model.safetensors"
            raise UsageError(f"--adapter: expected NAME=DIR of an adapter in peft's layout, got {adapter}", hint)
    return adapters


def _run(services: LocalServices, found: dict[str, Path], talk: UpTalk, *, as_json: bool) -> None:
    """`found` are adapters that nobody named.

    Returns after Ctrl-C or SIGTERM. Raises Failed if a service ends by itself. Leaves none running."""
    from services.cli.jobs.running.keystroke import seconds_since_start
    from services.cli.jobs.running.local_services import bring_up
    from services.cli.jobs.running.supervisor import NotReady, ServiceDied, StopRequested, Supervisor
    from services.runtime.environment import unread_variables

    supervisor = Supervisor(talk.line, talk.still_starting)
    with supervisor.listening():  # in the background too, where a shell has SIGINT ignored
        try:
            for line in unread_variables():
                talk.say(line)
            talk.starting(services, found)
            addresses = bring_up(
                services, supervisor, lambda key: talk.say(f"trusts its own {key.role} key: {key.path}")
            )
            talk.announce(addresses, services, seconds_since_start(), as_json=as_json)
            supervisor.wait()
        except StopRequested as request:
            talk.say(f"{request}: stopping")
        except ServiceDied as error:
            hint = f"its last line: {error.last_line}" if error.last_line else None
            raise talk.failure(f"{error}; everything was stopped", hint) from error
        except NotReady as error:
            raise talk.failure(f"{error}; everything was stopped") from error
        finally:
            supervisor.stop(_GRACE_SECONDS)
