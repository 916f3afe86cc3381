"""Roles: auditors may replay receipts and read their content, operators may erase it."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from services.runtime.errors import PermissionDenied, Unauthenticated

ROLE_KEY = "kolm-role"
AUTHORIZATION_KEY = "authorization"

Metadata = Iterable[tuple[str, str | bytes]]


def require_auditor(metadata: Metadata | None, secret: str | None) -> None:
    """`require_role` for auditors."""
    require_role("auditor", metadata, secret)


def require_operator(metadata: Metadata | None, secret: str | None) -> None:
    """`require_role` for operators."""
    require_role("operator", metadata, secret)


def require_role(role: str, metadata: Metadata | None, secret: str | None) -> None:
    """Returns for a caller with `kolm-role: <role>` and, if `secret` is set, with it as a bearer token.

    Raises PermissionDenied without the role, Unauthenticated for a missing or wrong token.
    """
    sent = {key: value for key, value in metadata or () if isinstance(value, str)}
    if sent.get(ROLE_KEY) != role:
        raise PermissionDenied(f"only {role}s may do this; send metadata {ROLE_KEY}: {role}")
    token = sent.get(AUTHORIZATION_KEY, "").removeprefix("Bearer ")
    if secret is not None and not hmac.compare_digest(token.encode(), secret.encode()):
        raise Unauthenticated(f"expected the {role}s' secret as a bearer token in the metadata {AUTHORIZATION_KEY}")
