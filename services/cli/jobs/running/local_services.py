"""The services on this machine, sharing one data directory: keys, trusted keys, ledger, state."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.cli.jobs.running.own_principals import SERVICE_ROLES, make_own_principals, principals_file, token_file
from services.cli.jobs.running.supervisor import Plan, Supervisor
from services.cli.jobs.trust import TrustedKey, trust_own

_KEYS = (("LEDGER", "log"), ("GENERATION", "receipts"), ("AUDITOR", "auditor"))
"""Which service signs with the key of which role."""

_NAMES = ("ledger", "registry", "generation", "auditor", "explorer", "http")
_QUICK_SECONDS = 60.0
_MODEL_SECONDS = 900.0  # loading and probing a large model on a slow disk


@dataclass(frozen=True, slots=True)
class LocalServices:
    """The services to run. Port 0 takes a free one. `environment` is added to the services' own.

    `audit_by_server`: the auditor believes the generation service instead of loading the model itself.
    `explorer_port` None serves no auditor's page, `http_port` None no OpenAI front. `shared_flags` go to all. Metrics
    are served from `metrics_port` on, a port for each service in the order of `_NAMES`; from 0, on free ones.
    """

    data_dir: Path
    model: Path
    host: str = "127.0.0.1"
    generation_port: int = 50051
    ledger_port: int = 50052
    auditor_port: int = 50053
    registry_port: int = 50054
    audit_rate: float = 1.0
    audit_by_server: bool = False
    auditor_flags: tuple[str, ...] = ()
    generation_module: str = "services.generation"
    generation_flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    explorer_port: int | None = None
    http_port: int | None = None
    shared_flags: tuple[str, ...] = ()
    metrics_port: int | None = None

    def trust_own_keys(self) -> tuple[TrustedKey, ...]:
        """Whoever runs these services trusts their keys, and lets them call each other: keys and tokens are made and
        added before anything starts. Returns the new keys.

        Raises KeyFileError, PrincipalsError, OSError.
        """
        make_own_principals(self.data_dir)
        own = (self._trusted(service, role) for service, role in _KEYS)
        return tuple(key for key in own if key.is_new)

    def _trusted(self, service: str, role: str) -> TrustedKey:
        passphrase = {**os.environ, **self.environment}.get(f"KOLM_{service}_KEY_PASSPHRASE_FILE")
        file = Path(passphrase) if passphrase else None
        return trust_own(self.data_dir / "keys" / f"{role}.pem", role, self.data_dir / "trusted", file)

    def ledger(self) -> Plan:
        flags = ("--data-dir", str(self.data_dir), "--listen", f"{self.host}:{self.ledger_port}")
        return self._plan("ledger", "services.ledger", flags)

    def registry(self, ledger: str) -> Plan:
        flags = (
            *("--data-dir", str(self.data_dir / "registry"), "--listen", f"{self.host}:{self.registry_port}"),
            *("--ledger", ledger, "--trusted-keys", str(self.data_dir / "trusted")),
        )
        return self._plan("registry", "services.registry", flags)

    def generation(self, ledger: str, registry: str | None = None) -> Plan:
        flags = (
            *("--model", str(self.model), "--listen", f"{self.host}:{self.generation_port}", "--ledger", ledger),
            *("--state-dir", str(self.data_dir / "generation"), "--keys-dir", str(self.data_dir / "keys")),
            *("--trusted-keys", str(self.data_dir / "trusted")),
            *(() if registry is None else ("--registry", registry)),
            *self.generation_flags,
        )
        return self._plan("generation", self.generation_module, flags)

    def auditor(self, ledger: str, generation: str) -> Plan:
        own = ("--model", str(self.model), *self.auditor_flags)
        flags = (
            *("--data-dir", str(self.data_dir), "--listen", f"{self.host}:{self.auditor_port}"),
            *("--ledger", ledger, "--rate", str(self.audit_rate)),
            *(("--by-server", "--generation", generation) if self.audit_by_server else own),
        )
        return self._plan("auditor", "services.auditor", flags)

    def explorer(self, ledger: str) -> Plan:
        flags = (
            *("--listen", f"{self.host}:{self.explorer_port}", "--ledger", ledger),
            *("--trusted-keys", str(self.data_dir / "trusted")),
        )
        return self._plan("explorer", "services.explorer", flags)

    def http(self, generation: str) -> Plan:
        flags = ("--listen", f"{self.host}:{self.http_port}", "--generation", generation)
        return self._plan("http", "services.http", flags)

    def _plan(self, name: str, module: str, flags: tuple[str, ...]) -> Plan:
        """With its token, if it calls others, and the file that says who may call it."""
        ready_file, token = self.data_dir / "run" / f"{name}.address", token_file(self.data_dir, name)
        metrics = (f"--metrics-port={self.metrics_ports[name]}",) if self.metrics_ports else ()
        access = ("--principals", str(principals_file(self.data_dir)))
        shown = ("--token-file", str(token)) if name in SERVICE_ROLES else ()
        flags = (*flags, "--ready-file", str(ready_file), *access, *shown, *metrics, *self.shared_flags)
        return Plan(name, module, flags, ready_file, self.environment)

    @property
    def metrics_ports(self) -> dict[str, int]:
        """By service; empty where none serves metrics."""
        if self.metrics_port is None:
            return {}
        return {name: self.metrics_port and self.metrics_port + place for place, name in enumerate(_NAMES)}

    def plans(self) -> tuple[Plan, ...]:
        """All plans, with addresses left open: what `kolm up` gives each service."""
        front = () if self.http_port is None else (self.http(""),)
        page = () if self.explorer_port is None else (self.explorer(""),)
        return (self.ledger(), self.registry(""), self.generation("", ""), self.auditor("", ""), *page, *front)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the services listen, host:port."""

    generation: str
    ledger: str
    auditor: str
    registry: str | None = None
    explorer: str | None = None
    http: str | None = None


def bring_up(
    services: LocalServices, supervisor: Supervisor, told: Callable[[TrustedKey], None] = lambda key: None
) -> Addresses:
    """Start the ledger, then the registry, which both are there at once, then together what takes longer.

    An auditor that believes the generation service waits for it.

    Their keys are trusted first; `told` gets those that are new. Raises KeyFileError, PrincipalsError, OSError, and
    what Supervisor.start raises.
    """
    for key in services.trust_own_keys():
        told(key)
    ledger = supervisor.start(services.ledger(), _QUICK_SECONDS)
    registry = supervisor.start(services.registry(ledger), _QUICK_SECONDS)
    generating = services.generation(ledger, registry)
    supervisor.launch(generating)
    generation = supervisor.address(generating, _MODEL_SECONDS) if services.audit_by_server else ""
    auditing = services.auditor(ledger, generation)
    supervisor.launch(auditing)
    explorer = None if services.explorer_port is None else supervisor.start(services.explorer(ledger), _QUICK_SECONDS)
    generation = supervisor.address(generating, _MODEL_SECONDS)
    front = services.http(generation)
    if services.http_port is not None:
        supervisor.launch(front)
    auditor = supervisor.address(auditing, _MODEL_SECONDS)
    http = None if services.http_port is None else supervisor.address(front, _QUICK_SECONDS)
    return Addresses(generation, ledger, auditor, registry, explorer, http)
