"""The principal whose call a task serves."""

from __future__ import annotations

from contextvars import ContextVar

from services.runtime.access.principal import DEFAULT_TENANT, NOBODY, Principal
from services.runtime.errors import PermissionDenied

current_principal: ContextVar[Principal] = ContextVar("current_principal", default=NOBODY)
"""Set by the interceptor. Threads of `asyncio.to_thread` have it, those of `run_in_executor` do not."""


def caller() -> Principal:
    """The caller; nobody outside of calls."""
    return current_principal.get()


def tenant_of_call(named: str, field: str = "tenant") -> str:
    """The tenant on whose behalf the caller acts, where the request names `named`, or none by an empty text.

    Raises PermissionDenied for a tenant that is not the caller's.
    """
    principal = caller()
    if principal.tenant is None:
        return named or DEFAULT_TENANT
    if named not in ("", principal.tenant):
        who = f"the credential of {principal.name}" if principal.authenticated else "a call without a token"
        raise PermissionDenied(
            f"{field}: {who} is for the tenant {principal.tenant!r}; leave {field} out, or bring a token of the other",
            reason="FOREIGN_TENANT",
        )
    return principal.tenant
