"""Credentials of principals: a bearer token, a certificate's name, or a connection from the same machine."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from services.runtime.access.principal import Principal, Role

TOKEN_PREFIX = "kolm_"
"""Of every token, so that people and scanners of repositories know one when they see it."""

_TOKEN_BYTES = 32  # 256 bits
_ID_DIGITS = 12
_Name = Annotated[str, Field(pattern=r"^[ -~]{1,128}$")]


def new_token() -> str:
    """A fresh one: 256 bits from the system's generator, in URL-safe base64."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def token_digest(token: str) -> str:
    """The SHA-256 of a token, in hex, which is all that servers keep.

    A slow hash with salt protects what people choose. A token has 256 random bits: nobody finds it from its digest, and
    a server can look it up by its digest in no time that depends on how much of it was right.
    """
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Credential(BaseModel):
    """One line of the file of principals. Exactly one of `token_sha256`, `certificate` and `loopback` is set.

    `certificate` is a subject alternative name or the common name of a client's certificate. `loopback` is for callers
    without either, from the same machine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: _Name
    tenant: Annotated[str, Field(min_length=1, max_length=128)] | None
    roles: tuple[Role, ...]
    token_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    certificate: _Name | None = None
    loopback: bool = False
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [self.token_sha256 is not None, self.certificate is not None, self.loopback].count(True) != 1:
            raise ValueError("expected exactly one of token_sha256, certificate and loopback")
        return self

    @property
    def id(self) -> str:
        """Its name for people; no secret."""
        if self.loopback:
            return "loopback"
        digest = self.token_sha256 or hashlib.sha256(f"certificate:{self.certificate}".encode()).hexdigest()
        return digest[:_ID_DIGITS]

    @property
    def principal(self) -> Principal:
        return Principal(self.name, self.tenant, frozenset(self.roles), authenticated=not self.loopback)

    def valid_at(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at
