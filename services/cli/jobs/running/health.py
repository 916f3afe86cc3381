"""Which services answer, and what they say about themselves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from services.client import LedgerClient, Runtime
from services.client.connection.channel import Connection
from services.client.errors import KolmError
from services.client.registry.registry import RegistryClient

_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether a service serves, with a remark. `proven` is False where its numerics profile has failed its probe."""

    service: str
    address: str
    serving: bool
    detail: str
    proven: bool = True


@dataclass(frozen=True, slots=True)
class Remark:
    """A serving service's own account of itself."""

    detail: str
    proven: bool = True


def ask_all(generation: str, ledger: str, auditor: str, registry: str) -> list[Condition]:
    """One condition for each service. Never raises for a service that does not answer."""
    return [
        _ask("generation", generation, _generation),
        _ask("ledger", ledger, _ledger),
        _ask("auditor", auditor, lambda _: Remark("follows the ledger")),
        _ask("registry", registry, _registry),
    ]


def _ask(service: str, address: str, remark: Callable[[str], Remark]) -> Condition:
    with closing(Connection(address)) as connection:
        try:
            if not connection.serving(timeout=_SECONDS):
                return Condition(service, address, False, "does not answer, or is stopping")
            said = remark(address)
            return Condition(service, address, True, said.detail, said.proven)
        except KolmError as error:
            return Condition(service, address, False, error.message)


def _generation(address: str) -> Remark:
    with Runtime.connect(address) as runtime:
        info, load = runtime.model_info(), runtime.load()
    halted = f", {len(info.halted_scopes)} halted" if info.halted_scopes else ""
    pending = f", {load.outbox_pending} receipts pending" if load.outbox_pending else ""
    drafting = [head.name or "an unpublished head" for head in info.heads if not head.withdrawn]
    heads = f" with {', '.join(drafting)}" if drafting else ""
    methods = ", ".join(info.methods)
    unproven = "" if info.probe_passed else "numerics profile unproven, one row a pass (`kolm doctor` says why); "
    busy = f"{load.running} running, {load.waiting} waiting{pending}"
    return Remark(f"{info.model}: {unproven}{methods}{heads}{halted}; {busy}", info.probe_passed)


def _ledger(address: str) -> Remark:
    with LedgerClient.connect(address) as ledger:
        return Remark(f"{ledger.checkpoint().tree_size} entries")


def _registry(address: str) -> Remark:
    with RegistryClient.connect(address) as registry:
        count = sum(1 for _ in registry.heads())
    return Remark("1 head" if count == 1 else f"{count} heads")
