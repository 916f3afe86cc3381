"""The services on this machine, sharing one data directory: keys, trusted keys, ledger, state, and tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.durable_file import write_durably
from services.cli.frame.exits import UsageError
from services.cli.frame.options import run_folder
from services.cli.trust import TrustedKey, trust_own
from services.cli.up.supervisor import Plan, Settings, Supervisor
from services.generation.state_folder import LOADING
from services.generation.target.errors import TargetError

if TYPE_CHECKING:
    from services.cli.up.up_options import OtherEngineOptions
    from services.runtime.credentials import Role


_KEYS = (("LEDGER", "log"), ("GENERATION", "receipts"), ("AUDITOR", "auditor"))
"""The services that sign, each with the role of its key."""

_NAMES = ("ledger", "registry", "generation", "auditor", "explorer", "http")  # each after the services that it calls
_QUICK_SECONDS = 60.0
_MODEL_SECONDS = 900.0  # loading and probing a large model on a slow disk


OWNER = "owner"
"""The owner of the services: the client finds this token by itself (`services.client.identity`)."""

LOCAL = "local"
"""Generates for the default tenant, until the next start: the token that `kolm up` prints for browsers and API keys."""

SERVICE_ROLES: Mapping[str, tuple[Role, ...]] = {
    "generation": ("append", "read"),
    "auditor": ("append", "read", "audit"),
    "registry": ("append", "read"),
    "explorer": ("read",),
    "http": ("observe",),
}
"""Roles of each service that calls others. The HTTP front passes on its callers' tokens; its own is for metrics."""


@dataclass(frozen=True, slots=True)
class LocalServices:
    """The services to run. Port 0 takes a free one. `environment` is added to the services' own.

    `explorer_port` None serves no auditor's page, `http_port` None no OpenAI front. All services have the
    `shared_settings`. Metrics are served from `metrics_port` on, a port for each service in the order of `_NAMES`; from
    0, on free ones. With an `engine`, that one computes in place of kolm's own.
    """

    data_dir: Path
    model: Path | None  # the weights of the engine, if they are at hand
    host: str = "127.0.0.1"
    generation_port: int = 50051
    ledger_port: int = 50052
    auditor_port: int = 50053
    registry_port: int = 50054
    audit_rate: float = 1.0
    auditor_settings: Settings = field(default_factory=dict)
    generation_module: str = "services.generation"
    generation_settings: Settings = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    explorer_port: int | None = None
    http_port: int | None = None
    shared_settings: Settings = field(default_factory=dict)
    metrics_port: int | None = None
    engine: OtherEngineOptions | None = None

    def check_model(self) -> None:
        """Check headers of the model's files, before anything is made. Raises UsageError if it cannot be served."""
        from services.generation.target.weights import check_headers

        if self.model is None:
            return
        try:
            check_headers(self.model)
        except TargetError as error:
            raise UsageError(f"{'--weights' if self.engine else '--model'}: {error}") from error

    @property
    def named_model(self) -> str:
        """The engine and its address, or the model of kolm's own."""
        return f"{self.engine.engine} at {self.engine.plain_url}" if self.engine else str(self.model)

    def trust_own_keys(self) -> tuple[TrustedKey, ...]:
        """Make and trust the services' keys, and the tokens with which they call each other, before anything starts.
        Returns the new keys.

        Raises KeyFileError, PrincipalsError, OSError.
        """
        make_local_principals(self.data_dir)
        own = (self._trusted(service, role) for service, role in _KEYS)
        return tuple(key for key in own if key.is_new)

    def _trusted(self, service: str, role: str) -> TrustedKey:
        passphrase = {**os.environ, **self.environment}.get(f"KOLM_{service}_KEY_PASSPHRASE_FILE")
        file = Path(passphrase) if passphrase else None
        return trust_own(self.data_dir / "keys" / f"{role}.pem", role, self.data_dir / "trusted", file)

    @property
    def front_is_within(self) -> bool:
        """Whether the front runs in the generation service's process (`services.cli.up.with_front`)."""
        return self.http_port is not None and self.engine is not None

    @property
    def local_token(self) -> Path:
        """The file with the token of this start, for browsers and API keys; `trust_own_keys` makes it."""
        return token_file(self.data_dir, LOCAL)

    def ledger(self) -> Plan:
        return self._plan("ledger", self.ledger_port, data_dir=self.data_dir)

    def registry(self, ledger: str) -> Plan:
        data_dir, trusted = self.data_dir / "registry", self.data_dir / "trusted"
        return self._plan("registry", self.registry_port, data_dir=data_dir, ledger=ledger, trusted_keys=trusted)

    def generation(self, ledger: str, registry: str | None = None) -> Plan:
        return self._plan(
            "generation",
            self.generation_port,
            self.generation_settings if self.engine is None else {**self.generation_settings, **self.engine.settings()},
            module=self.generation_module,
            model=None if self.engine else self.model,
            ledger=ledger,
            state_dir=self.data_dir / "generation",
            keys_dir=self.data_dir / "keys",
            trusted_keys=self.data_dir / "trusted",
            registry=registry,
        )

    def auditor(self, ledger: str) -> Plan:
        return self._plan(
            "auditor",
            self.auditor_port,
            self.auditor_settings,
            data_dir=self.data_dir,
            ledger=ledger,
            rate=self.audit_rate,
            model=self.model,
        )

    def explorer(self, ledger: str) -> Plan:
        return self._plan("explorer", self.explorer_port, ledger=ledger, trusted_keys=self.data_dir / "trusted")

    def http(self, generation: str, explorer: str | None = None) -> Plan:
        page = None if explorer is None else f"http://{explorer}"
        trusted = self.data_dir / "trusted"
        return self._plan("http", self.http_port, generation=generation, trusted_keys=trusted, explorer_url=page)

    def _plan(
        self, name: str, port: int | None, more: Settings | None = None, *, module: str | None = None, **own: object
    ) -> Plan:
        """The plan of a service, with its token, if it calls others, and the file of its permitted callers."""
        ready_file = run_folder(self.data_dir) / f"{name}.address"
        listens_at = f"{self.host}:{port}"
        usual = {
            "listen": listens_at,
            "ready_file": ready_file,
            "principals": principals_file(self.data_dir),
            "token_file": token_file(self.data_dir, name) if name in SERVICE_ROLES else None,
            "metrics_port": self.metrics_ports.get(name),
        }
        settings = {**own, **usual, **(more or {}), **self.shared_settings}
        loading = {LOADING: str(ready_file.parent)}  # the auditor lets the server of this folder load first
        module = module or f"services.{name}"
        environment = {**loading, **self.environment}
        return Plan(name, module, settings, listens_at, ready_file, environment, rank=_NAMES.index(name))

    @property
    def metrics_ports(self) -> dict[str, int]:
        """Metrics ports by service; empty if none serves metrics."""
        if self.metrics_port is None:
            return {}
        return {name: self.metrics_port and self.metrics_port + place for place, name in enumerate(_NAMES)}

    def plans(self) -> tuple[Plan, ...]:
        """All plans of `kolm up`, with empty addresses."""
        front = () if self.http_port is None else (self.http("", None if self.explorer_port is None else ""),)
        page = () if self.explorer_port is None else (self.explorer(""),)
        return (self.ledger(), self.registry(""), self.generation("", ""), self.auditor(""), *page, *front)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the services, host:port."""

    generation: str
    ledger: str
    auditor: str | None = None
    registry: str | None = None
    explorer: str | None = None
    http: str | None = None


def bring_up(
    services: LocalServices,
    supervisor: Supervisor,
    trusted: Callable[[TrustedKey], None] = lambda key: None,
    answering: Callable[[Addresses], None] = lambda addresses: None,
) -> Addresses:
    """Start the model's server, which takes longest, and beside it one service after another, called services before
    their callers, so that they take no CPU from it; the auditor and its page when requests are answered. A service on
    a free port has to be ready before its callers start, which need its address.

    The services' keys are trusted first; `trusted` gets the new ones. `answering` is called as soon as requests are
    answered. Raises KeyFileError, PrincipalsError, OSError, and the errors of Supervisor.start.
    """
    for key in services.trust_own_keys():
        trusted(key)
    launched = partial(_Launched, supervisor)
    ledger = launched(services.ledger())
    registry = launched(services.registry(ledger.place))
    page = None if services.explorer_port is None else launched(services.explorer(ledger.place))

    def front(generation: str) -> Plan:
        return services.http(generation, None if page is None else page.place)

    plan = services.generation(ledger.place, registry.place)
    within = front(plan.listens_at) if services.front_is_within else None
    generation = launched(plan if within is None else _with_front(plan, within), _MODEL_SECONDS)
    generation.start()
    first = Addresses("", ledger.address, registry=registry.address)
    if services.http_port is not None and within is None:
        first = replace(first, http=launched(front(generation.place)).address)
    first = replace(first, generation=generation.address)
    if within is not None:
        first = replace(first, http=within.ready_file.read_text(encoding="utf-8").strip())
    answering(first)
    auditor = launched(services.auditor(ledger.place), _MODEL_SECONDS)
    auditor.start()
    return replace(first, explorer=None if page is None else page.address, auditor=auditor.address)


def _with_front(generation: Plan, front: Plan) -> Plan:
    """The plan of one process with both services, ready when both are."""
    front.ready_file.unlink(missing_ok=True)
    return replace(generation, module="services.cli.up.with_front", more=("--", *front.flags))


@contextmanager
def tokens_left(services: LocalServices, *addresses: str | None) -> Iterator[None]:
    """A block in which clients of this user find the owner's token by the services' ports, from any folder."""
    from services.runtime.credentials import token_left

    token = token_file(services.data_dir, OWNER).read_text(encoding="ascii").strip()
    with ExitStack() as stack:
        for address in filter(None, addresses):
            stack.enter_context(token_left(address, token))
        yield


class _Launched:
    """A service that starts when its address is read, or before, by `start`. Both properties raise the errors of
    Supervisor.address.
    """

    def __init__(self, supervisor: Supervisor, plan: Plan, seconds: float = _QUICK_SECONDS) -> None:
        self._supervisor, self._plan, self._seconds, self._started = supervisor, plan, seconds, False

    def start(self) -> None:
        if not self._started:
            self._started = True
            self._supervisor.launch(self._plan)

    @property
    def place(self) -> str:
        """The address that it will have; a service on a free port has to be ready for that."""
        return self.address if self._plan.listens_at.endswith(":0") else self._plan.listens_at

    @property
    def address(self) -> str:
        """The address, once it serves."""
        self.start()
        return self._supervisor.address(self._plan, self._seconds)


def principals_file(data_dir: Path) -> Path:
    """The principals of a data directory's services."""
    return data_dir / "principals.json"


def token_file(data_dir: Path, name: str) -> Path:
    """The file of the token of a service, or of the owner (mode 0600)."""
    return data_dir / "tokens" / name


def make_local_principals(data_dir: Path) -> None:
    """Make missing and expired tokens, and a new token `LOCAL` at each call. Other credentials stay as they are.

    Raises PrincipalsError, OSError.
    """
    from services.runtime.credentials import (
        LOCAL_CALLER,
        ROLES,
        Credential,
        digest_in,
        edited_principals,
        new_token,
        token_digest,
    )

    needed: dict[str, tuple[Role, ...]] = {**SERVICE_ROLES, OWNER: ROLES, LOCAL: ("generate",)}
    file, now = principals_file(data_dir), datetime.now(UTC)
    with edited_principals(file) as credentials:
        valid = {each.token_sha256 for each in credentials if each.token_sha256 and each.valid_at(now)}
        for name, roles in needed.items():
            if name == LOCAL or digest_in(token_file(data_dir, name)) not in valid:
                token, named = new_token(), f"kolm up: {name}"
                write_durably(token_file(data_dir, name), f"{token}\n".encode())
                tenant, digest = LOCAL_CALLER.tenant if name == LOCAL else None, token_digest(token)
                made = Credential(name=named, tenant=tenant, roles=roles, token_sha256=digest, created_at=now)
                credentials[:] = [*(each for each in credentials if each.name != named), made]
