"""Holds each tenant to its quota. On one event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from services.generation.quotas.quota import ANY_TENANT, Quota
from services.generation.quotas.token_bucket import TokenBucket
from services.runtime.errors import QuotaViolation, ResourceExhausted

_SOON = 1.0  # seconds: until one of the requests in flight may have ended
_LATER = 60.0  # seconds: content goes when somebody erases it, or its retention ends
_MOST_IDLE = 4096


@dataclass(slots=True)
class _Tenant:
    quota: Quota
    bucket: TokenBucket | None
    in_flight: int = 0
    used_at: float = 0.0


@dataclass(slots=True)
class Grant:
    """A request that was let in. `end` it once."""

    _tenant: _Tenant
    _choices: int
    _tokens: int

    def end(self, used: int) -> None:
        """`used`: tokens of its prompt and its outputs."""
        self._tenant.in_flight -= self._choices
        if self._tenant.bucket is not None:
            self._tenant.bucket.give_back(self._tokens - used)


@dataclass(slots=True)
class TenantQuotas:
    """`stored` says how many bytes of a tenant's content the ledger has, as far as is known."""

    quotas: Mapping[str, Quota]
    stored: Callable[[str], int] = lambda _: 0
    clock: Callable[[], float] = time.monotonic
    _tenants: dict[str, _Tenant] = field(default_factory=dict)

    def let_in(self, name: str, choices: int, tokens: int) -> Grant:
        """`tokens` is the most that the request may take; what it does not use comes back when it ends.

        Raises ResourceExhausted, reason QUOTA_EXCEEDED.
        """
        tenant, now = self._tenant(name), self.clock()
        quota = tenant.quota
        if quota.requests is not None and tenant.in_flight + choices > quota.requests:
            found = f"{tenant.in_flight} in flight"
            raise _exceeded(name, "requests", f"{quota.requests} requests at once", found, _SOON)
        if quota.bytes is not None and (stored := self.stored(name)) >= quota.bytes:
            found = f"the ledger has {stored:,}"
            raise _exceeded(name, "bytes", f"{quota.bytes:,} bytes of content", found, _LATER)
        if tenant.bucket is not None:
            if seconds := tenant.bucket.wait(tokens, now):
                found = f"this request may take {tokens}, and {max(tenant.bucket.level, 0):.0f} are left"
                raise _exceeded(name, "tokens", f"{quota.tokens} tokens a minute", found, seconds)
            tenant.bucket.take(tokens)
        tenant.in_flight += choices
        tenant.used_at = now
        return Grant(tenant, choices, tokens)

    def _tenant(self, name: str) -> _Tenant:
        if name not in self._tenants:
            if len(self._tenants) >= _MOST_IDLE:
                self._forget()
            quota = self.quotas.get(name, self.quotas[ANY_TENANT])
            self._tenants[name] = _Tenant(quota, None if quota.tokens is None else TokenBucket(quota.tokens))
        return self._tenants[name]

    def _forget(self) -> None:
        """Tenants that have been idle for a minute, so that their buckets are full again."""
        now = self.clock()
        self._tenants = {
            name: each for name, each in self._tenants.items() if each.in_flight or now - each.used_at < _LATER
        }


def _exceeded(tenant: str, name: str, limit: str, found: str, seconds: float) -> ResourceExhausted:
    message = f"the tenant {tenant!r} may have {limit}; {found}"
    return ResourceExhausted(
        f"{message}; come back in {seconds:.1f} s",
        retry_after=seconds,
        reason="QUOTA_EXCEEDED",
        quota=QuotaViolation(name, f"tenant:{tenant}", message),
    )
