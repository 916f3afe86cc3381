"""A folder to start services from: an authority, certificates of services and callers, who may call, and settings."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ledger.durable_file import sync_path, write_durably
from services.cli.failures.exits import Failed, UsageError
from services.cli.jobs.certificates import Authority, Pair
from services.cli.jobs.running.own_principals import SERVICE_ROLES
from services.runtime.credentials import ROLES, Credential, write_principals

CALLER = "client"
PORTS = {"generation": 50051, "ledger": 50052, "auditor": 50053, "registry": 50054, "explorer": 50056, "http": 50057}
_BROWSED = ("explorer", "http")
"""Their callers are browsers and clients of OpenAI's API, which bring no certificate."""
_CALLS = {
    "generation": ("ledger", "registry"),
    "auditor": ("ledger",),
    "registry": ("ledger",),
    "explorer": ("ledger",),
    "http": ("generation",),
}
_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class InitialFolder:
    """Where everything is. Private keys have mode 0600, the folders 0700."""

    path: Path

    @property
    def settings(self) -> Path:
        """For `kolm serve SERVICE --config`."""
        return self.path / "kolm.toml"

    @property
    def environment(self) -> Path:
        """Variables of a caller, for a shell to source."""
        return self.path / "client.env"

    @property
    def principals(self) -> Path:
        """The principals, by their certificates' names."""
        return self.path / "principals.json"

    @property
    def authority(self) -> Path:
        return self.path / "tls" / "ca.pem"

    def certificate(self, name: str) -> Path:
        return self.path / "tls" / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.path / "tls" / f"{name}.key"

    def create(self, hosts: Sequence[str], now: datetime, days: int) -> None:
        """Writes everything, or nothing. Raises UsageError where something is there already, Failed."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UsageError(f"{self.path} is there already, and is not overwritten", "--renew replaces certificates")
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            draft.mkdir(mode=0o700, parents=True)
            (draft / "tls").mkdir(mode=0o700)
            authority = Authority.create(now)
            _write_pair(InitialFolder(draft), "ca", authority.pair())
            _issue_all(InitialFolder(draft), authority, hosts, now, days)
            write_durably(draft / self.settings.name, self._settings().encode(), 0o600)
            write_durably(draft / self.environment.name, self._environment().encode(), 0o600)
            write_principals(draft / self.principals.name, _principals(now))
            os.rename(draft, self.path)  # takes the place of an empty folder as well
            sync_path(self.path.parent)
        except OSError as error:
            raise Failed(f"cannot write {self.path}: {error.strerror}") from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def renew(self, hosts: Sequence[str], now: datetime, days: int) -> None:
        """New certificates of the folder's authority and keys. Running services take them at their next
        handshake. Raises UsageError, Failed.
        """
        try:
            pair = Pair(self.authority.read_bytes(), self.key("ca").read_bytes())
            _issue_all(self, Authority.load(pair), hosts, now, days)
        except FileNotFoundError as error:
            raise UsageError(f"no {error.filename}: there is nothing to renew") from None
        except ValueError as error:
            raise UsageError(f"{self.authority}, {self.key('ca')}: {error}") from None
        except OSError as error:
            raise Failed(f"cannot write {self.path}: {error.strerror}") from None

    def _settings(self) -> str:
        return "\n".join(line for service in PORTS for line in (*self._table(service), ""))

    def _table(self, service: str) -> Iterator[str]:
        root = self.path.resolve()
        state = "state_dir" if service == "generation" else "data_dir"
        yield f"[{service}]"
        yield f'listen = "127.0.0.1:{PORTS[service]}"'
        if service not in _BROWSED:
            yield f"{state} = {json.dumps(str(root / service))}"
        if service in ("generation", "auditor"):
            yield 'model = "smollm2"'
        yield f"trusted_keys = {json.dumps(str(root / 'trusted'))}"
        if service in ("generation", "ledger", "registry"):
            yield f"principals = {json.dumps(str(root / self.principals.name))}"
        yield from (f'{called} = "https://localhost:{PORTS[called]}"' for called in _CALLS.get(service, ()))
        for name, path in (
            ("tls_cert", self.certificate(service)),
            ("tls_key", self.key(service)),
            *(() if service in _BROWSED else (("tls_client_ca", self.authority),)),
            *((("tls_ca", self.authority),) if service in _CALLS else ()),
        ):
            yield f"{name} = {json.dumps(str(path.resolve()))}"

    def _environment(self) -> str:
        files = (("CA", self.authority), ("CERT", self.certificate(CALLER)), ("KEY", self.key(CALLER)))
        return "".join(f"export KOLM_TLS_{name}={json.dumps(str(path.resolve()))}\n" for name, path in files)


def _principals(now: datetime) -> list[Credential]:
    """Each service by its certificate, and the caller with every role."""
    roles = {name: SERVICE_ROLES[name] for name in PORTS if name in SERVICE_ROLES} | {CALLER: ROLES}
    return [
        Credential(name=name, tenant=None, roles=each, certificate=name, created_at=now) for name, each in roles.items()
    ]


def _issue_all(folder: InitialFolder, authority: Authority, hosts: Sequence[str], now: datetime, days: int) -> None:
    for service in (*PORTS, "witness"):
        _write_pair(folder, service, authority.issue(service, (*_HERE, *hosts), now, days))
    _write_pair(folder, CALLER, authority.issue(CALLER, (), now, days))


def _write_pair(folder: InitialFolder, name: str, pair: Pair) -> None:
    """The key first: a service that looks in between finds a pair that does not belong together, and keeps its own."""
    write_durably(folder.key(name), pair.key, 0o600)
    write_durably(folder.certificate(name), pair.certificate, 0o644)
