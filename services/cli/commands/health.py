"""`kolm health`: which services answer, and what they say about themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import typer

from services.cli import exits, options

if TYPE_CHECKING:
    from rich.table import Table

_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Condition:
    """One service: where, whether it serves, and a remark."""

    service: str
    address: str
    serving: bool
    detail: str


def health(
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    auditor: options.Auditor = options.AUDITOR,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """Ask every service whether it serves. Exit code 5 if one does not."""
    from services.cli.output import data, print_json

    conditions = [
        _condition("generation", generation, _generation_detail),
        _condition("ledger", ledger, _ledger_detail),
        _condition("auditor", auditor, lambda address: "follows the ledger"),
        _condition("registry", registry, _registry_detail),
    ]
    healthy = all(condition.serving for condition in conditions)
    if json:
        print_json({"healthy": healthy, "services": [asdict(condition) for condition in conditions]})
    else:
        data().print(_table(conditions))
    raise typer.Exit(exits.OK if healthy else exits.UNAVAILABLE)


def _condition(service: str, address: str, detail: Callable[[str], str]) -> Condition:
    from services.client.channel import Connection
    from services.client.errors import KolmError

    connection = Connection(address)
    try:
        if not connection.serving(timeout=_SECONDS):
            return Condition(service, address, False, "does not answer, or is stopping")
        return Condition(service, address, True, detail(address))
    except KolmError as error:
        return Condition(service, address, False, error.message)
    finally:
        connection.close()


def _generation_detail(address: str) -> str:
    from services.client import Runtime

    with Runtime.connect(address) as runtime:
        info, load = runtime.model_info(), runtime.load()
    halted = f", {len(info.halted_scopes)} halted" if info.halted_scopes else ""
    pending = f", {load.outbox_pending} receipts pending" if load.outbox_pending else ""
    drafting = [head.name or "an unpublished head" for head in info.heads if not head.withdrawn]
    heads = f" with {', '.join(drafting)}" if drafting else ""
    methods = ", ".join(info.methods)
    return f"{info.model}: {methods}{heads}{halted}; {load.running} running, {load.waiting} waiting{pending}"


def _ledger_detail(address: str) -> str:
    from services.client import LedgerClient

    with LedgerClient.connect(address) as ledger:
        return f"{ledger.checkpoint().tree_size} entries"


def _registry_detail(address: str) -> str:
    from services.client.registry import RegistryClient

    with RegistryClient.connect(address) as registry:
        count = sum(1 for _ in registry.heads())
        return "1 head" if count == 1 else f"{count} heads"


def _table(conditions: list[Condition]) -> Table:
    from services.cli.output import MARKS, table

    made = table("service", "address", "", "")
    for condition in conditions:
        made.add_row(condition.service, condition.address, MARKS[condition.serving], condition.detail)
    return made
