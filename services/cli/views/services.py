"""Services: what they write, where they listen, how they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from services.cli.output import MARKS, print_json, table, talk

if TYPE_CHECKING:
    from services.cli.jobs.running.health import Condition
    from services.cli.jobs.running.local_services import Addresses, LocalServices

_COLOURS = {
    "ledger": "cyan",
    "generation": "green",
    "auditor": "magenta",
    "registry": "yellow",
    "explorer": "blue",
    "http": "white",
}


def line_printer() -> Callable[[str, str], None]:
    """Prints a line of a service on stderr, behind the service's name; from any thread."""
    console = talk()

    def print_line(service: str, line: str) -> None:
        prefix = Text(f"{service:>10} │ ", style=_COLOURS.get(service, ""))
        console.print(prefix + Text.from_ansi(line), soft_wrap=True)

    return print_line


def say(line: str) -> None:
    """A line of `kolm up` itself, among those of the services."""
    talk().print(f"[bold]{'kolm':>10} │[/] {line}", soft_wrap=True)


def starting(services: LocalServices, adapters: Mapping[str, Path]) -> None:
    """What `kolm up` says before anything else; `adapters` lie beside the model."""
    say(f"starting with {escape(str(services.model))}; keys, ledger and state are in {escape(str(services.data_dir))}")
    if adapters:
        say(f"adapters beside the model, for kolm generate --adapter: {escape(', '.join(adapters))}")


def still_starting(service: str, seconds: float, last_line: str | None) -> None:
    """What is said of a service that says nothing itself."""
    doing = "importing" if last_line is None else last_line.partition("] ")[2] or last_line
    say(f"{service}, {seconds:.0f} s: {escape(doing)} …")


def announce(addresses: Addresses, services: LocalServices, seconds: float, *, as_json: bool) -> None:
    """Say that every service serves, where, and how long after the start of the command."""
    if as_json:
        print_json(asdict(addresses))
        return
    say(f"ready after {seconds:.1f} s: generation {addresses.generation}, ledger {addresses.ledger}")
    say(f"       auditor {addresses.auditor}, registry {addresses.registry}")
    if addresses.explorer is not None:
        say(f"       the auditor's page: http://{addresses.explorer}/")
    if addresses.http is not None:
        say(f"       OpenAI's API: http://{addresses.http}/v1")
    whose = "by the audited server itself" if services.audit_by_server else "by an engine of the auditor's own"
    say(f"{services.audit_rate:.0%} of all receipts are replayed, {whose}; `kolm audit run` replays the rest")
    say('try: kolm generate "def add(a, b):"      Ctrl-C stops everything')


def conditions_json(conditions: Sequence[Condition]) -> dict[str, Any]:
    """Whether all services serve with proven numerics, and the condition of each."""
    healthy = all(each.serving and each.proven for each in conditions)
    return {"healthy": healthy, "services": [asdict(each) for each in conditions]}


def conditions_view(conditions: Sequence[Condition]) -> RenderableType:
    """One line for each service."""
    made = table("service", "address", "", "")
    for each in conditions:
        made.add_row(each.service, each.address, MARKS[each.serving and each.proven], each.detail)
    return made
