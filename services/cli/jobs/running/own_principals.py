"""Principals of the services on this machine: each other, with the roles that they need, and their owner, with all."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from services.runtime.access.credential import Credential, new_token, token_digest
from services.runtime.access.principal import LOCAL_CALLER, ROLES, Role
from services.runtime.access.principals_file import edited_principals, write_private

OWNER = "owner"
"""The owner of the services: the client finds this token by itself (`services.client.connection.token`)."""

SERVICE_ROLES: Mapping[str, tuple[Role, ...]] = {
    "generation": ("append", "read"),
    "auditor": ("append", "read", "audit"),
    "registry": ("append", "read"),
    "explorer": ("read",),
}
"""The roles of each service that calls others. The HTTP front has no rights: it shows its callers' tokens."""

_ROLES: Mapping[str, tuple[Role, ...]] = {**SERVICE_ROLES, OWNER: ROLES}


def principals_file(data_dir: Path) -> Path:
    """The principals of a data directory's services."""
    return data_dir / "principals.json"


def token_file(data_dir: Path, name: str) -> Path:
    """Where the token of a service, or of the owner, lies (mode 0600)."""
    return data_dir / "tokens" / name


def make_own_principals(data_dir: Path) -> None:
    """Make the tokens that are missing, as well as those that are no longer valid. Everything else there stays.

    At first callers on this machine get in without a token, and may generate for the default tenant; a person may
    revoke that for good. Raises PrincipalsError, OSError.
    """
    file, now = principals_file(data_dir), datetime.now(UTC)
    first = not file.exists()
    with edited_principals(file) as credentials:
        valid = {each.token_sha256 for each in credentials if each.valid_at(now)}
        if first:
            roles = tuple(LOCAL_CALLER.roles)
            credentials.append(_credential(LOCAL_CALLER.name, LOCAL_CALLER.tenant, roles, now, loopback=True))
        for name, roles in _ROLES.items():
            if _kept_digest(token_file(data_dir, name)) not in valid:
                token = new_token()
                write_private(token_file(data_dir, name), token + "\n")
                credentials[:] = [each for each in credentials if each.name != f"kolm up: {name}"]
                credentials.append(_credential(f"kolm up: {name}", None, roles, now, token_sha256=token_digest(token)))


def _kept_digest(file: Path) -> str | None:
    try:
        return token_digest(file.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError):
        return None


def _credential(
    name: str, tenant: str | None, roles: tuple[Role, ...], now: datetime, **proof: str | bool
) -> Credential:
    return Credential.model_validate({"name": name, "tenant": tenant, "roles": roles, "created_at": now, **proof})
