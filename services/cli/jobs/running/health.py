"""Which services answer, and what they say about themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from services.client import LedgerClient, Runtime
from services.client.channel import Connection
from services.client.errors import KolmError
from services.client.registry import RegistryClient

_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether a service serves, with a remark."""

    service: str
    address: str
    serving: bool
    detail: str


def ask_all(generation: str, ledger: str, auditor: str, registry: str) -> list[Condition]:
    """One condition for each service. Never raises for a service that does not answer."""
    return [
        _ask("generation", generation, _generation_detail),
        _ask("ledger", ledger, _ledger_detail),
        _ask("auditor", auditor, lambda address: "follows the ledger"),
        _ask("registry", registry, _registry_detail),
    ]


def _ask(service: str, address: str, detail: Callable[[str], str]) -> Condition:
    with closing(Connection(address)) as connection:
        try:
            if not connection.serving(timeout=_SECONDS):
                return Condition(service, address, False, "does not answer, or is stopping")
            return Condition(service, address, True, detail(address))
        except KolmError as error:
            return Condition(service, address, False, error.message)


def _generation_detail(address: str) -> str:
    with Runtime.connect(address) as runtime:
        info, load = runtime.model_info(), runtime.load()
    halted = f", {len(info.halted_scopes)} halted" if info.halted_scopes else ""
    pending = f", {load.outbox_pending} receipts pending" if load.outbox_pending else ""
    drafting = [head.name or "an unpublished head" for head in info.heads if not head.withdrawn]
    heads = f" with {', '.join(drafting)}" if drafting else ""
    methods = ", ".join(info.methods)
    return f"{info.model}: {methods}{heads}{halted}; {load.running} running, {load.waiting} waiting{pending}"


def _ledger_detail(address: str) -> str:
    with LedgerClient.connect(address) as ledger:
        return f"{ledger.checkpoint().tree_size} entries"


def _registry_detail(address: str) -> str:
    with RegistryClient.connect(address) as registry:
        count = sum(1 for _ in registry.heads())
    return "1 head" if count == 1 else f"{count} heads"
