"""`kolm up`: ledger, registry, generation, auditor, their page and OpenAI's API on this machine, in the foreground."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from services.cli.commands.up.listen_options import LISTEN, ListenOptions
from services.cli.commands.up.served_options import SERVED, ServedOptions
from services.cli.options import options
from services.cli.values.named_files import expect_writable

if TYPE_CHECKING:
    from services.cli.jobs.running.local_services import LocalServices
    from services.cli.views.services.services import UpTalk

_GRACE_SECONDS = 20.0


def _defaults_from(context: typer.Context, config: Path | None) -> Path | None:
    """Settings of the generation service that the auditor has to load as well are flags here: both get them."""
    if config is not None:
        from services.cli.jobs.running.configuration import Configuration

        context.default_map = Configuration.read(config).shared_with_the_auditor()
    return config


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options of every service."""

    config: Annotated[
        Path | None,
        typer.Option(
            envvar="KOLM_CONFIG",
            metavar="FILE",
            is_eager=True,
            callback=_defaults_from,
            help="TOML with a table of settings for each service.",
        ),
    ] = None
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65530, help="Serve metrics from this port on, a port a service; 0 takes free ones."),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option(help="Of the services. Default: info.")
    ] = None
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Lines as text or JSON.")] = "text"

    def flags(self, *, insecure: bool) -> tuple[str, ...]:
        from services.cli.jobs.running.command_words import words

        log_format = None if self.log_format == "text" else self.log_format
        return words(insecure=insecure, config=self.config, log_level=self.log_level, log_format=log_format)


SERVICES = ServiceOptions()


def up(
    data_dir: options.DataDir = options.DATA_DIR,
    served: ServedOptions = SERVED,
    listen: ListenOptions = LISTEN,
    audit_rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of receipts that are replayed.")] = 1.0,
    every: ServiceOptions = SERVICES,
    json: options.Json = False,
) -> None:
    """Run all services until Ctrl-C. If one of them dies, all stop: exit code 1, with its reason."""
    from services.cli.jobs.running.configuration import Configuration
    from services.cli.jobs.running.local_services import LocalServices
    from services.cli.views.services.services import UpTalk

    own, found = served.server_flags(), served.adapters_beside()
    same = served.auditor_flags(found)
    listen.check_host()
    services = LocalServices(
        data_dir,
        served.model,
        listen.host,
        generation_port=listen.generation_port,
        ledger_port=listen.ledger_port,
        auditor_port=listen.auditor_port,
        registry_port=listen.registry_port,
        explorer_port=listen.page(),
        http_port=listen.front(),
        audit_rate=audit_rate,
        auditor_flags=same,
        generation_flags=(*same, *own),
        shared_flags=every.flags(insecure=listen.insecure),
        metrics_port=every.metrics_port,
    )
    if every.config is not None:
        Configuration.read(every.config).refuse_what_up_sets(services.plans())
    listen.check_ports(services.metrics_ports)
    _run(services, found, UpTalk(every.log_format), as_json=json)


def _run(services: LocalServices, found: dict[str, Path], talk: UpTalk, *, as_json: bool) -> None:
    """`found` are adapters that nobody named.

    Returns after Ctrl-C or SIGTERM. Raises UsageError for a model that cannot be served, Failed if a service ends by
    itself. Leaves none running.
    """
    from services.cli.jobs.running.keystroke import seconds_since_start
    from services.cli.jobs.running.local_services import bring_up, tokens_left
    from services.cli.jobs.running.supervisor import NotReady, ServiceDied, StopRequested, Supervisor
    from services.runtime.usage import unread_variables

    services.check_model()
    expect_writable("--data-dir", services.data_dir)
    supervisor = Supervisor(talk.line, talk.still_starting)
    with supervisor.listening():  # in the background too, where a shell has SIGINT ignored
        try:
            for line in unread_variables():
                talk.say(line)
            talk.starting(services, found)
            addresses = bring_up(
                services, supervisor, lambda key: talk.say(f"trusts its own {key.role} key: {key.path}")
            )
            with tokens_left(services, addresses):
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
