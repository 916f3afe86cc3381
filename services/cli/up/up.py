"""`kolm up`: ledger, registry, generation, auditor, their page and OpenAI's API on this machine, in the foreground."""

from __future__ import annotations

import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from services.cli.frame import options
from services.cli.frame.exits import FAILED, Failed
from services.cli.frame.output import print_json, stderr_console
from services.cli.frame.values import expect_writable
from services.cli.up import data_folder
from services.cli.up.supervisor import NotReady, ServiceDied, Settings, StopRequested, Supervisor
from services.cli.up.up_options import (
    LISTEN,
    OTHER_ENGINE,
    SERVED,
    Configuration,
    ListenOptions,
    OtherEngineOptions,
    ServedOptions,
    refuse_tls_variables,
)
from services.runtime import usage

if TYPE_CHECKING:
    from services.cli.trust import TrustedKey
    from services.cli.up.local_services import Addresses, LocalServices
    from services.runtime.settings import LogFormat


_GRACE_SECONDS, _LONGEST_GRACE_SECONDS, _MORE_SECONDS = 10.0, 3600.0, 10.0
"""The usual and the longest grace period of running calls, and the time for last words and the outbox."""


_COLOURS = {
    "ledger": "cyan",
    "generation": "green",
    "auditor": "magenta",
    "registry": "yellow",
    "explorer": "blue",
    "http": "white",
}

_IMPORTED = time.monotonic()


def _defaults_from(context: typer.Context, config: Path | None) -> Path | None:
    """Take settings that generation and auditor share as defaults of this command's flags, which both get."""
    if config is not None:
        context.default_map = Configuration.read(config).shared_with_the_auditor()
    return config


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options of every service."""

    config: Annotated[
        Path | None,
        Option(
            envvar="KOLM_CONFIG",
            metavar="FILE",
            is_eager=True,
            callback=_defaults_from,
            help="TOML with a table of settings for each service.",
        ),
    ] = None
    metrics_port: Annotated[
        int | None,
        Option(min=0, max=65530, help="Serve metrics from this port on, a port a service; 0 takes free ones."),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, Option(help="Log level of the services. Default: info.")
    ] = None
    log_format: Annotated[Literal["text", "json"], Option(help="Log lines as text or as JSON.")] = "text"

    def settings(self, *, insecure: bool) -> Settings:
        """Settings of every service."""
        log_format = None if self.log_format == "text" else self.log_format
        return {"insecure": insecure, "config": self.config, "log_level": self.log_level, "log_format": log_format}


SERVICES = ServiceOptions()


def up(
    data_dir: options.DataDir = options.DATA_DIR,
    served: ServedOptions = SERVED,
    other: OtherEngineOptions = OTHER_ENGINE,
    listen: ListenOptions = LISTEN,
    audit_rate: Annotated[
        float, Option(min=0.0, max=1.0, help="Share of the receipts that the auditor replays.")
    ] = 1.0,
    every: ServiceOptions = SERVICES,
    json: options.Json = False,
) -> None:
    """Run all services until Ctrl-C. If one of them dies, all stop, with exit code 1 and the reason."""
    from services.cli.up.local_services import LocalServices

    data_folder.expect_unused(data_dir)
    engine = other.checked()
    if not engine:
        served = served.with_fetched_heads()
    own, found = served.server_settings(), {} if engine else served.default_adapters()
    same = served.shared_settings(found)
    listen.check_host()
    services = LocalServices(
        data_dir,
        other.weights if engine else served.model,
        listen.host,
        generation_port=listen.generation_port,
        ledger_port=listen.ledger_port,
        auditor_port=listen.auditor_port,
        registry_port=listen.registry_port,
        audit_rate=audit_rate,
        auditor_settings={**same, **other.auditor_settings()},
        generation_settings={**same, **own},
        shared_settings=every.settings(insecure=listen.insecure),
        metrics_port=every.metrics_port,
        engine=engine,
    )
    metrics = services.metrics_ports
    services = replace(services, explorer_port=listen.page(metrics), http_port=listen.front(metrics))
    configuration = None if every.config is None else Configuration.read(every.config)
    if configuration is not None:
        configuration.refuse_what_up_sets(services.plans())
    refuse_tls_variables(services.plans())
    listen.check_ports(metrics)
    reporter = UpReporter(every.log_format)
    faster = (lambda: None) if engine else served.faster
    _run(services, found, faster, reporter, _stop_seconds(configuration), as_json=json)


def _stop_seconds(configuration: Configuration | None) -> float:
    """The longest time that a service may take to stop. If the front is in the server's process, each has a grace
    period, one after the other.
    """
    tables = () if configuration is None else configuration.tables.values()
    given: list[object] = [table.values.get("grace_seconds") for table in tables]
    own = {f"KOLM_{service.upper()}_GRACE_SECONDS" for service in usage.SERVICES}
    given += [value for name, value in os.environ.items() if name.upper() in own]
    longest = _GRACE_SECONDS
    for value in given:
        with suppress(ValueError):  # the service reports it
            longest = max(longest, min(float(str(value)), _LONGEST_GRACE_SECONDS))
    return 2 * longest + _MORE_SECONDS


def _run(
    services: LocalServices,
    found: dict[str, Path],
    faster: Callable[[], str | None],
    reporter: UpReporter,
    stop_seconds: float,
    *,
    as_json: bool,
) -> None:
    """Run the services until Ctrl-C or SIGTERM, and leave none running. `found` are adapters that were not named;
    `faster` returns a flag or command that would make the model faster. A service that does not stop within
    `stop_seconds` is killed.

    Raises UsageError for a model that cannot be served, Failed if a service ends by itself.
    """
    from services.cli.up.local_services import bring_up, tokens_left
    from services.runtime.usage import unread_variables

    services.check_model()
    expect_writable("--data-dir", services.data_dir)
    supervisor = Supervisor(reporter.line, reporter.still_starting)
    # Also for a process in the background, which a shell starts with SIGINT ignored.
    with data_folder.held(services.data_dir), supervisor.listening():
        try:
            for line in unread_variables():
                reporter.log_line(line)
            reporter.starting(services, found)
            with ExitStack() as stack:

                def answering(found: Addresses) -> None:
                    stack.enter_context(tokens_left(services, found.generation, found.ledger, found.registry))
                    if not as_json:
                        reporter.answering(found, services, seconds_since_start())
                    if (hint := faster()) is not None:  # after the start, which it would make longer
                        reporter.log_line(f"faster: {hint}")

                def trusted(key: TrustedKey) -> None:
                    reporter.log_line(f"trusting the new key of role {key.role}: {key.path}")

                addresses = bring_up(services, supervisor, trusted, answering)
                stack.enter_context(tokens_left(services, addresses.auditor))
                reporter.ready(addresses, services, seconds_since_start(), as_json=as_json)
                supervisor.wait()
        except StopRequested as request:
            reporter.log_line(f"{request}: stopping")
        except ServiceDied as error:
            hint = f"its last line: {error.last_line}" if error.last_line else None
            raise reporter.failure(f"{error}; everything was stopped", hint) from error
        except NotReady as error:
            raise reporter.failure(f"{error}; everything was stopped") from error
        finally:
            supervisor.stop(stop_seconds)


class UpReporter:
    """Output of `kolm up` and its services on stderr: text after the service's name, or one JSON object a line."""

    def __init__(self, form: LogFormat) -> None:
        self._json = form == "json"
        self._console = stderr_console()
        self._printing = threading.Lock()

    def line(self, service: str, line: str) -> None:
        """Print a line of a service, from any thread; JSON unchanged. A closed terminal or pipe stops no service."""
        with suppress(OSError), self._printing:
            if not self._json:
                self._print_styled(service, line)
                return
            if not (line.startswith("{") and line.endswith("}")):
                record = {"time": datetime.now(UTC).isoformat(), "level": "INFO", "service": service, "message": line}
                line = json.dumps(record, ensure_ascii=False)
            print(line, file=sys.stderr, flush=True)

    def _print_styled(self, service: str, line: str) -> None:
        from rich.text import Text

        try:
            text = Text.from_ansi(line)
        except ValueError:  # an escape sequence with a number of thousands of digits
            text = Text(line)
        prefix = Text(f"{service:>10} │ ", style=_COLOURS.get(service, "bold"))
        self._console.print(prefix + text, soft_wrap=True)

    def log_line(self, line: str) -> None:
        """Print a line of `kolm up` itself."""
        self.line("kolm", line)

    def failure(self, message: str, hint: str | None = None) -> Failed | SystemExit:
        """The exception for a failure, which was printed already if lines are JSON."""
        if not self._json:
            return Failed(message, hint)
        self.log_line(f"{message}; {hint}" if hint else message)
        return SystemExit(FAILED)

    def starting(self, services: LocalServices, adapters: Mapping[str, Path]) -> None:
        """Print the first lines; `adapters` were found next to the model."""
        self.log_line(f"starting with {services.named_model}; keys, ledger and state are in {services.data_dir}")
        if adapters:
            self.log_line(f"adapters next to the model, for kolm generate --adapter: {', '.join(adapters)}")

    def still_starting(self, service: str, seconds: float, last_line: str | None) -> None:
        """Print a line for a service that prints none."""
        doing = "importing" if last_line is None else last_line.partition("] ")[2] or last_line
        self.log_line(f"{service}, {seconds:.0f} s: {doing} …")

    def answering(self, addresses: Addresses, services: LocalServices, seconds: float) -> None:
        """Print the addresses that answer requests from now on, and the seconds since the command's start."""
        also = f"ledger {addresses.ledger}, registry {addresses.registry}"
        self.log_line(f"answers after {seconds:.1f} s: generation {addresses.generation}, {also}")
        if addresses.http is not None:
            front = options.callable_at(addresses.http)
            if self._json:  # lines of a log, which gets no secret
                self.log_line(f"       OpenAI's API: http://{front}/v1, api_key in {services.local_token}")
            else:
                key = services.local_token.read_text(encoding="ascii").strip()
                self.log_line(f"       OpenAI's API: http://{front}/v1 api_key {key}")
                self.log_line(f"       a page to chat on: http://{front}/#key={key}")
        self.log_line(f"try: {_first_request(services)}      Ctrl-C stops everything")

    def ready(self, addresses: Addresses, services: LocalServices, seconds: float, *, as_json: bool) -> None:
        """Print that every service serves, the auditor too."""
        if as_json:
            print_json(asdict(addresses))
            return
        self.log_line(f"ready after {seconds:.1f} s: auditor {addresses.auditor}")
        if addresses.explorer is not None:
            self.log_line(f"       the auditor's page: http://{options.callable_at(addresses.explorer)}/")
        every = "the auditor replays every receipt, on an engine of its own"
        some = f"the auditor replays {services.audit_rate:.0%} of the receipts, on an engine of its own"
        replays = every if services.audit_rate >= 1.0 else f"{some}; `kolm audit run --sample 1` replays the others"
        asked = "the auditor asks the engine again with speculation off, and checks outputs by its --weights if given"
        self.log_line(asked if services.engine else replays)


def _first_request(services: LocalServices) -> str:
    """A command that calls these services from any folder."""
    request = 'kolm generate --chat "What is gravity?"'
    if (services.data_dir, services.generation_port) == (options.DATA_DIR, LISTEN.generation_port):
        return request
    return f"{request} --data-dir {shlex.quote(str(services.data_dir.resolve()))}"


def seconds_since_start() -> float:
    """Seconds since the process started, by the kernel's clock (proc(5), `starttime`); off Linux, since the import."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return time.monotonic() - _IMPORTED
