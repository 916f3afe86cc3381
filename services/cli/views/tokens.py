"""Credentials, without what proves them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from services.cli.jobs.tokens import EVERY_TENANT, Created
from services.cli.terminal.output import table
from services.runtime.credentials import Credential


def created_json(made: Created) -> dict[str, Any]:
    """The credential, and its token unless that went into a file."""
    return {
        **_json(made.credential),
        "token": made.token,
        "token_file": None if made.file is None else str(made.file),
    }


def created_view(made: Created) -> str:
    """The token alone, so that it can be piped; else what was done."""
    if made.token is not None:
        return made.token
    if made.file is not None:
        return f"wrote {made.file}, the token of {made.credential.name} ({made.credential.id})"
    if made.credential.anybody:
        roles = ", ".join(made.credential.roles)
        return f"anybody who reaches the servers' ports, also through a proxy, has: {roles}"
    return f"whoever shows a certificate for {made.credential.certificate} is {made.credential.name}"


def credentials_json(credentials: Sequence[Credential]) -> list[dict[str, Any]]:
    """One object for each."""
    return [_json(each) for each in credentials]


def credentials_view(credentials: Sequence[Credential]) -> RenderableType:
    """One line for each."""
    made = table("id", "name", "tenant", "roles", "proven by", "ends", whole=("id",))
    for each in credentials:
        proof = "nothing" if each.anybody else "token"
        if each.certificate is not None:
            proof = f"certificate {each.certificate}"
        row = (each.id, each.name, each.tenant or EVERY_TENANT, ", ".join(each.roles), proof)
        made.add_row(*map(escape, row), _end(each))
    return made


def revoked_view(gone: Sequence[Credential]) -> str:
    """The tokens that no longer count."""
    return "\n".join(f"revoked {each.id}, of {each.name}" for each in gone)


def _end(credential: Credential) -> str:
    if credential.expires_at is None:
        return "[dim]–[/]"
    when = f"{credential.expires_at:%Y-%m-%d}"
    return when if credential.valid_at(datetime.now(UTC)) else f"ended {when}"


def _json(credential: Credential) -> dict[str, Any]:
    kind = "anybody" if credential.anybody else "certificate" if credential.certificate else "token"
    return {
        "id": credential.id,
        "name": credential.name,
        "tenant": credential.tenant,
        "roles": list(credential.roles),
        "kind": kind,
        "certificate": credential.certificate,
        "created_at": credential.created_at.isoformat(),
        "expires_at": None if credential.expires_at is None else credential.expires_at.isoformat(),
    }
