"""Whom servers under test let in, principals with their tokens, and whom they trust: the log's key."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from ledger.keys.ed25519 import SigningKey
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

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


@functools.cache
def everybody() -> Access:
    """Every caller has every role, for every tenant: for tests that are about something else."""
    return Access(everybodys_file())


@functools.cache
def everybodys_file() -> Path:
    """The same for processes: what `--principals` takes."""
    folder = Path(tempfile.mkdtemp(prefix="kolm-test-access-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_principals(folder / "principals.json", [anybodys(*ROLES, tenant=None)])
    return folder / "principals.json"


def anybodys(*roles: Role, tenant: str | None = DEFAULT_TENANT) -> Credential:
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
