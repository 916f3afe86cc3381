"""Principals of the services on this machine: each other, with the roles that they need, and their owner, with all."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from services.runtime.credentials import (
    LOCAL_CALLER,
    ROLES,
    Credential,
    Role,
    edited_principals,
    new_token,
    token_digest,
    write_private,
)

OWNER = "owner"
"""The owner of the services: the client finds this token by itself (`services.client.identity`)."""

LOCAL = "local"
"""Generates for the default tenant, until the next start: the token that `kolm up` prints for browsers and API keys."""

SERVICE_ROLES: Mapping[str, tuple[Role, ...]] = {
    "generation": ("append", "read"),
    "auditor": ("append", "read", "audit"),
    "registry": ("append", "read"),
    "explorer": ("read",),
}
"""The roles of each service that calls others. The HTTP front has no rights: it shows its callers' tokens."""

_ROLES: Mapping[str, tuple[Role, ...]] = {**SERVICE_ROLES, OWNER: ROLES, LOCAL: ("generate",)}


def principals_file(data_dir: Path) -> Path:
    """The principals of a data directory's services."""
    return data_dir / "principals.json"


def token_file(data_dir: Path, name: str) -> Path:
    """Where the token of a service, or of the owner, lies (mode 0600)."""
    return data_dir / "tokens" / name


def make_own_principals(data_dir: Path) -> None:
    """Make the tokens that are missing, as well as those that are no longer valid. Everything else there stays.

    The token `LOCAL` is made anew each time. Raises PrincipalsError, OSError.
    """
    file, now = principals_file(data_dir), datetime.now(UTC)
    with edited_principals(file) as credentials:
        valid = {each.token_sha256 for each in credentials if each.valid_at(now)}
        for name, roles in _ROLES.items():
            if name == LOCAL or _kept_digest(token_file(data_dir, name)) not in valid:
                token = new_token()
                write_private(token_file(data_dir, name), token + "\n")
                credentials[:] = [each for each in credentials if each.name != f"kolm up: {name}"]
                credentials.append(
                    Credential(
                        name=f"kolm up: {name}",
                        tenant=LOCAL_CALLER.tenant if name == LOCAL else None,
                        roles=roles,
                        token_sha256=token_digest(token),
                        created_at=now,
                    )
                )


def _kept_digest(file: Path) -> str | None:
    try:
        return token_digest(file.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError):
        return None
