"""Changes to a file of principals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from services.cli.failures.exits import Failed, Missing, UsageError
from services.runtime.credentials import (
    ROLES,
    Credential,
    PrincipalsError,
    Role,
    edited_principals,
    new_token,
    read_principals,
    token_digest,
    write_private,
)

EVERY_TENANT = "*"


@dataclass(frozen=True, slots=True)
class Wish:
    """A credential to be made: a token, which goes into the file `out` where that is set, or `certificate`, or
    `anybody`'s.
    """

    name: str
    roles: tuple[str, ...]
    tenant: str
    lasts: timedelta | None = None
    certificate: str | None = None
    anybody: bool = False
    out: Path | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """A new credential; `token` is None for a certificate, and where it was written to a file."""

    credential: Credential
    token: str | None
    file: Path | None


def create_credential(file: Path, wish: Wish) -> Created:
    """Add a credential to a file, which is made if need be. Raises UsageError, Failed."""
    if wish.anybody and wish.certificate is not None:
        raise UsageError("--anybody: takes no --certificate: it is for callers who show nothing")
    token = new_token() if wish.certificate is None and not wish.anybody else None
    credential = _credential(wish, token)
    if wish.out is not None:
        if token is None:
            raise UsageError("--out: no token is made; there is nothing to write")
        if wish.out.exists():
            raise UsageError(f"--out: {wish.out} exists already")
    with _edited(file) as credentials:
        if any(each.id == credential.id for each in credentials):
            raise UsageError(f"{file} has {wish.certificate or 'anybody'} already: revoke {credential.id} first")
        if token is not None and wish.out is not None:  # first: a token that nobody can read is of no use
            write_private(wish.out, token + "\n")
        credentials.append(credential)
    return Created(credential, token if wish.out is None else None, wish.out)


def list_credentials(file: Path) -> tuple[Credential, ...]:
    """The credentials in a file. Raises Failed."""
    try:
        return read_principals(file)
    except PrincipalsError as error:
        raise Failed(str(error)) from None


def revoke_credentials(file: Path, named: str) -> Sequence[Credential]:
    """Remove the credential of an id, or all of a name; returns them. Raises Missing, Failed."""
    if not file.exists():
        raise Missing(f"there is no {file}: nobody has a credential")
    with _edited(file) as credentials:
        gone = [each for each in credentials if named in (each.id, each.name)]
        if not gone:
            raise Missing(f"no credential {named!r} in {file}", "`kolm tokens list` shows them")
        credentials[:] = [each for each in credentials if each not in gone]
    return gone


def _credential(wish: Wish, token: str | None) -> Credential:
    unknown = [role for role in wish.roles if role not in ROLES]
    if unknown:
        raise UsageError(f"--role: {unknown[0]!r}: expected one of {', '.join(ROLES)}")
    now = datetime.now(UTC).replace(microsecond=0)
    try:
        return Credential(
            name=wish.name,
            tenant=None if wish.tenant == EVERY_TENANT else wish.tenant,
            roles=tuple(dict.fromkeys(cast(tuple[Role, ...], wish.roles))),
            token_sha256=None if token is None else token_digest(token),
            certificate=wish.certificate,
            anybody=wish.anybody,
            created_at=now,
            expires_at=None if wish.lasts is None else now + wish.lasts,
        )
    except (ValidationError, OverflowError) as error:
        if isinstance(error, OverflowError):
            raise UsageError("--expires: reaches beyond the year 9999") from None
        field = str(error.errors()[0]["loc"][0])
        expected = "1 to 128 characters" if field == "tenant" else "1 to 128 printable ASCII characters"
        raise UsageError(f"{field}: expected {expected}") from None


@contextmanager
def _edited(file: Path) -> Iterator[list[Credential]]:
    try:
        with edited_principals(file) as credentials:
            yield credentials
    except PrincipalsError as error:
        raise Failed(str(error)) from None
