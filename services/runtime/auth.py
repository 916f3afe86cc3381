"""Who may do what only auditors may: replay, and read what a receipt commits to."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from services.runtime.errors import PermissionDenied, Unauthenticated

ROLE_KEY = "kolm-role"
AUTHORIZATION_KEY = "authorization"


def require_auditor(metadata: Iterable[tuple[str, str | bytes]] | None, secret: str | None) -> None:
    """Returns for a caller that says `kolm-role: auditor` and, where `secret` is set, brings it as a bearer token.

    Raises PermissionDenied without the role, Unauthenticated for a missing or wrong token.
    """
    sent = {key: value for key, value in metadata or () if isinstance(value, str)}
    if sent.get(ROLE_KEY) != "auditor":
        raise PermissionDenied(f"only auditors may do this; send metadata {ROLE_KEY}: auditor")
    token = sent.get(AUTHORIZATION_KEY, "").removeprefix("Bearer ")
    if secret is not None and not hmac.compare_digest(token.encode(), secret.encode()):
        raise Unauthenticated("expected the auditors' secret as a bearer token in the metadata authorization")
