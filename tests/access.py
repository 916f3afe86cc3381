"""Who may call: files of principals, and certificates."""

import functools
import os
from datetime import UTC, datetime
from pathlib import Path

from ledger.keys.ed25519 import SigningKey
from services.cli.init import Authority, Pair
from services.client.identity import ClientTls
from services.ledger.settings import LedgerSettings
from services.runtime.access import Access
from services.runtime.credentials import (
    DEFAULT_TENANT,
    ROLES,
    Credential,
    Role,
    edited_principals,
    new_token,
    token_digest,
    write_principals,
)
from services.runtime.listening import ServerTls
from tests.workers import OWN_FOLDER

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


@functools.cache
def open_access() -> Access:
    """Every caller has every role, for every tenant: for tests that are about something else."""
    return Access(open_access_file())


@functools.cache
def open_access_file() -> Path:
    """The same for processes: what `--principals` takes."""
    file = Path(os.environ[OWN_FOLDER], "principals.json")
    write_principals(file, [without_credential(*ROLES, tenant=None)])
    return file


def without_credential(*roles: Role, tenant: str | None = DEFAULT_TENANT) -> Credential:
    """The credential of callers without one."""
    return Credential(name="anonymous", tenant=tenant, roles=roles, anybody=True, created_at=CREATED)


def token_of(file: Path, *roles: Role, tenant: str | None = None, expires_at: datetime | None = None) -> str:
    """A new principal's token; the principal is added to `file`."""
    token = new_token()
    with edited_principals(file) as credentials:
        credentials.append(
            Credential(
                name="-".join(roles) or "idle", tenant=tenant, roles=roles, token_sha256=token_digest(token),
                created_at=CREATED, expires_at=expires_at,
            )
        )  # fmt: skip
    return token


def trust_log(settings: LedgerSettings) -> LedgerSettings:
    """Make the log's key, and trust it; the settings."""
    settings.trusted_directory.mkdir(parents=True, exist_ok=True)
    SigningKey.load_or_create(settings.log_key, "log").publish(settings.trusted_directory)
    return settings


def trust_log_in(data_dir: Path) -> None:
    """The same for a ledger with the default places."""
    trust_log(LedgerSettings(data_dir=data_dir))


HOSTS = ("localhost", "127.0.0.1")


class Certificates:
    """A folder with the authority of `ca.pem`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.create(datetime.now(UTC))
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.authority.pair().certificate)

    def server(self, name: str = "server", *, mutual: bool = False) -> ServerTls:
        """A server's files; existing files are replaced by renaming."""
        return ServerTls(*self._written(name, HOSTS), self.ca if mutual else None)

    def client(self, name: str = "client") -> ClientTls:
        return ClientTls(self.ca, *self._written(name, ()))

    def _written(self, name: str, hosts: tuple[str, ...]) -> tuple[Path, Path]:
        pair: Pair = self.authority.issue(name, hosts, datetime.now(UTC), days=2)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        for path, data in ((key, pair.key), (certificate, pair.certificate)):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(data)
            os.replace(fresh, path)
        return certificate, key
