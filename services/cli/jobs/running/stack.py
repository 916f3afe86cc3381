"""The whole stack at one moment: which servers serve, what runs, and what they export."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property

from services.client.channel import Connection
from services.client.errors import DeadlineExceeded, KolmError, Unavailable
from services.client.generation.completion import ModelInfo
from services.client.generation.runtime import Runtime
from services.client.health import Samples, read_metrics

_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Server:
    """One server. `problem` says why there are no samples, None where there are."""

    name: str
    address: str
    serving: bool
    samples: Samples = field(default_factory=Samples)
    problem: str | None = None
    read_at: float = 0.0

    @property
    def version(self) -> str:
        return next(iter(self.samples.by("kolm_build_info", "version")), "")

    def seconds_up(self, now: float) -> float | None:
        """`now` is Unix time."""
        started = self.samples.total("process_start_time_seconds")
        return now - started if started else None


@dataclass(frozen=True)
class Stack:
    """Every server that was asked, and the model, None where the generation server does not tell."""

    servers: tuple[Server, ...]
    model: ModelInfo | None

    def of(self, name: str) -> Samples:
        return next(server.samples for server in self.servers if server.name == name)

    def tells(self, name: str) -> bool:
        """Whether it let itself be read; its figures mean nothing otherwise."""
        return any(server.name == name and server.problem is None for server in self.servers)

    @cached_property
    def complete(self) -> bool:
        """Whether all serve and let themselves be read."""
        return self.serving and all(server.problem is None for server in self.servers)

    @cached_property
    def serving(self) -> bool:
        return all(server.serving for server in self.servers)

    @cached_property
    def answering(self) -> bool:
        """Whether all serve, and the model's numerics are known: what a probe asks."""
        return self.serving and self.model is not None

    @cached_property
    def unproven(self) -> bool:
        return self.model is not None and not self.model.probe_passed

    @cached_property
    def broken(self) -> tuple[str, ...]:
        """Promises that do not hold at the moment, each in a few words."""
        ledger, auditor = self.of("ledger"), self.of("auditor")
        counts = (
            (auditor.total("kolm_auditor_verdicts_total", outcome="DEVIATION"), "deviations found"),
            (ledger.total("kolm_ledger_open_halts"), "halts open"),
            (auditor.total("kolm_auditor_obligations", state="overdue"), "verdicts overdue"),
            (self.of("generation").total("kolm_outbox_refused"), "receipts refused by the ledger"),
            (_accusers(ledger), "witnesses saw another history of the log"),
        )
        unproven = ("numerics profile unproven",) if self.unproven else ()
        stuck = ("the ledger cannot write",) if 0 in ledger.by("kolm_ledger_takes_entries", "").values() else ()
        return (*unproven, *stuck, *(f"{count:.0f} {what}" for count, what in counts if count))


def _accusers(ledger: Samples) -> int:
    return list(ledger.by("kolm_ledger_witness_silent", "witness").values()).count(2)


def read_stack(addresses: Mapping[str, str]) -> Stack:
    """Ask the servers, by name, side by side. Never raises for one that does not answer."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        servers = tuple(pool.map(_read, addresses, addresses.values()))
    return Stack(servers, _model(addresses["generation"]) if servers[0].serving else None)


def _read(name: str, address: str) -> Server:
    with closing(Connection(address)) as connection:
        try:
            serving = connection.serving(timeout=_SECONDS)
            samples = read_metrics(connection, _SECONDS)
        except (Unavailable, DeadlineExceeded):
            return Server(name, address, False, problem="does not answer, or is stopping")
        except KolmError as error:
            return Server(name, address, serving, problem=error.message)
        return Server(name, address, serving, samples, read_at=time.monotonic())


def _model(address: str) -> ModelInfo | None:
    try:
        with Runtime.connect(address) as runtime:
            return runtime.model_info(timeout=_SECONDS)
    except KolmError:
        return None
