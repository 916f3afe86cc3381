"""Principals and their credentials: roles, tokens, certificates, the principals' file, the token of one start."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ledger.durable_file import write_durably
from services.client.identity import token_files
from services.runtime.setting_kind import Name

_log = logging.getLogger(__name__)


Role = Literal["generate", "append", "read", "audit", "publish", "operate", "observe"]
"""generate: ask the model, and see the own tenant's receipts. append: write entries into the ledger. read: see receipts
of every tenant, and the whole log. audit: read content. publish: draft heads. operate: erase, resume, withdraw heads.
observe: what is served and how busy it is, and no data.
"""

ROLES: tuple[Role, ...] = get_args(Role)

DEFAULT_TENANT = "default"

TOKEN_PREFIX = "kolm_"
"""The prefix of all tokens, by which people and scanners of repositories recognise them."""

_TOKEN_BYTES = 32  # 256 bits
_ID_DIGITS = 12
_Name = Annotated[str, Field(pattern=r"^[ -~]{1,128}$")]
_OTHERS_WRITE = 0o022


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller with its roles. `tenant` is None for a principal of all tenants. `authenticated` is False for callers
    without their own credential.
    """

    name: str
    tenant: str | None
    roles: frozenset[Role]
    authenticated: bool = True

    @property
    def sees_all(self) -> bool:
        """Whether it sees receipts of every tenant, and the whole log."""
        return bool(self.roles & {"read", "audit"}) or (self.tenant is None and "generate" in self.roles)

    def sees(self, tenant: str) -> bool:
        """Whether it sees that a tenant's receipts exist."""
        return self.sees_all or (bool(self.roles) and self.tenant == tenant)

    def reads_content(self, tenant: str) -> bool:
        """Whether it may read a tenant's prompts and outputs, as auditors and that tenant's own credentials may."""
        return "audit" in self.roles or (self.authenticated and self.tenant == tenant)


ANONYMOUS = Principal("anonymous", "", frozenset(), authenticated=False)
"""A caller without any right."""

LOCAL_CALLER = Principal("anonymous", DEFAULT_TENANT, frozenset({"generate"}), authenticated=False)
"""The holder of the token that a server without principals has made for this start."""


def new_token() -> str:
    """A new token: 256 bits from the system's generator, in URL-safe base64."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def token_digest(token: str) -> str:
    """The SHA-256 of a token, in hex, which is all that servers keep.

    Passwords that people choose need a slow hash with salt. A token has 256 random bits, which cannot be found from the
    digest, and the time of a look-up by digest does not depend on how many of its characters are right.
    """
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def digest_in(file: Path) -> str | None:
    """The digest of the token in a file; None for a file that cannot be read."""
    try:
        return token_digest(file.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError):
        return None


class Credential(BaseModel):
    """One line of the file of principals. Exactly one of `token_sha256`, `certificate` and `anybody` is set.

    `certificate` is the common name of a client's certificate, which counts first, or a subject alternative name.
    `anybody` is for all callers without a token or a certificate.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Name
    tenant: Name | None
    roles: tuple[Role, ...]
    token_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    certificate: _Name | None = None
    anybody: bool = False
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [self.token_sha256 is not None, self.certificate is not None, self.anybody].count(True) != 1:
            raise ValueError("expected exactly one of token_sha256, certificate and anybody")
        return self

    @property
    def id(self) -> str:
        """Its name for people; no secret."""
        if self.anybody:
            return "anybody"
        digest = self.token_sha256 or hashlib.sha256(f"certificate:{self.certificate}".encode()).hexdigest()
        return digest[:_ID_DIGITS]

    @property
    def principal(self) -> Principal:
        return Principal(self.name, self.tenant, frozenset(self.roles), authenticated=not self.anybody)

    def valid_at(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at


class PrincipalsError(Exception):
    """The file cannot be used; the message has the reason, and no contents of the file."""


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["kolm.principals.v1"] = "kolm.principals.v1"
    credentials: tuple[Credential, ...] = ()


def read_principals(path: Path) -> tuple[Credential, ...]:
    """Every credential, also expired ones. Raises PrincipalsError, also where others than the owner may write it."""
    try:
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise PrincipalsError(f"cannot read the principals: {error.strerror} ({path})") from None
    if mode & _OTHERS_WRITE:
        raise PrincipalsError(f"{path} is writable by group or others; refusing to use it: chmod go-w {path}")
    try:
        return _checked(_Document.model_validate_json(data).credentials)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise PrincipalsError(f"{path} is not a file of principals: {where}: {first['msg']}") from None
    except ValueError as error:
        raise PrincipalsError(f"{path}: {error}") from None


def write_principals(path: Path, credentials: Sequence[Credential]) -> None:
    """Replace the file in one step, with mode 0600. Raises OSError."""
    document = _Document(credentials=_checked(tuple(credentials)))
    write_durably(path, (document.model_dump_json(indent=1) + "\n").encode())


@contextmanager
def edited_principals(path: Path) -> Iterator[list[Credential]]:
    """The credentials to change, none if there is no file yet; written at the end of the block if they changed.

    Edits of several processes come one after another. Raises PrincipalsError, OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_principals(path) if path.exists() else None
        credentials = list(before or ())
        yield credentials
        if tuple(credentials) != before:
            write_principals(path, credentials)


def _checked(credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
    ids = [each.id for each in credentials]
    twice = next((each for each in ids if ids.count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"duplicate credential: {twice}")
    return credentials


@contextmanager
def token_left(address: str, token: str | None) -> Iterator[Path | None]:
    """A block in which this user's clients find the token of the server at `address`, in a file of mode 0600.

    If `token` is None, a killed server's file for the address is removed. Yields the file; None if there is none, also
    because it cannot be written: then callers need another token.
    """
    file, *_ = token_files(address) or (None,)
    try:
        if file is not None and token is None:
            file.unlink(missing_ok=True)
        elif file is not None and token is not None:
            write_durably(file, f"{token}\n".encode())
    except OSError as error:
        _log.warning("failing to write the token of this start to %s: %s", file, error.strerror)
        token = None
    if file is None or token is None:
        yield None
        return
    try:
        yield file
    finally:
        with suppress(OSError):
            if file.read_bytes().strip() == token.encode():  # and not of a server that listens there now
                file.unlink()
