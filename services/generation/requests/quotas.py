"""Quotas of tenants, as settings write them (`acme=requests:8,tokens:60000`), and what is left of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from services.runtime.errors import ResourceExhausted
from services.runtime.usage import checked_name

ANY_TENANT = "*"
"""The tenant whose limits count for tenants that the settings do not name, and where others leave a limit out."""

NO_LIMIT = "unlimited"

_FORM = "expected TENANT=NAME:LIMIT,…, with the names requests and tokens, and * for every other tenant"


@dataclass(frozen=True, slots=True)
class Quota:
    """`requests`: in flight, one of n choices counts n. `tokens`: of prompts and outputs, a minute. None: no limit."""

    requests: int | None = None
    tokens: int | None = None

    def part(self, servers: int) -> Quota:
        """The share of one of `servers`, rounded up."""
        requests, tokens = (None if whole is None else -(-whole // servers) for whole in (self.requests, self.tokens))
        return Quota(requests, tokens)


NAMES = tuple(field.name for field in fields(Quota))


def read_quotas(written: Sequence[str]) -> Mapping[str, Quota]:
    """Quotas by tenant, always with one for `*`. Raises ValueError that says what was expected."""
    given: dict[str, dict[str, int | None]] = {ANY_TENANT: {}}
    for each in written:
        tenant, _, limits = each.rpartition("=")
        if not tenant or not limits:
            raise ValueError(f"{_FORM}, got {each!r}")
        checked_name(tenant)
        if given.get(tenant):
            raise ValueError(f"expected one quota of the tenant {tenant!r}")
        given[tenant] = dict(_limit(limit, each) for limit in limits.split(","))
    return {tenant: Quota(**(given[ANY_TENANT] | own)) for tenant, own in given.items()}


def _limit(written: str, whole: str) -> tuple[str, int | None]:
    name, _, limit = (part.strip() for part in written.partition(":"))
    if name not in NAMES:
        raise ValueError(f"{_FORM}, got {whole!r}")
    if limit == NO_LIMIT:
        return name, None
    try:
        value = int(limit)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"expected {name}: a whole number from 1 on, or {NO_LIMIT}, got {limit!r}")
    return name, value


_MINUTE = 60.0


@dataclass(slots=True)
class TokenBucket:
    """Holds `a_minute` tokens, which flow in each minute. Times are seconds of one clock, and do not fall."""

    a_minute: int
    level: float = field(init=False)
    _at: float = 0.0

    def __post_init__(self) -> None:
        self.level = self.a_minute

    def wait(self, tokens: int, now: float) -> float:
        """Seconds until `tokens` may be taken; 0 is now. More than it holds may be taken when it is full."""
        self._flow(now)
        missing = min(tokens, self.a_minute) - self.level
        return max(missing, 0.0) * _MINUTE / self.a_minute

    def take(self, tokens: int) -> None:
        """Takes tokens that `wait` has allowed; the level may fall below 0."""
        self.level -= tokens

    def give_back(self, tokens: int) -> None:
        """Gives back tokens that were taken and not used."""
        self.level = min(self.level + tokens, self.a_minute)

    def _flow(self, now: float) -> None:
        self.level = min(self.level + (now - self._at) * self.a_minute / _MINUTE, self.a_minute)
        self._at = now


_SOON = 1.0  # seconds: until one of the requests in flight may have ended
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
    """What each tenant has taken of its quota. On one event loop."""

    quotas: Mapping[str, Quota]
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
            name: each for name, each in self._tenants.items() if each.in_flight or now - each.used_at < _MINUTE
        }


def _exceeded(tenant: str, name: str, limit: str, found: str, seconds: float) -> ResourceExhausted:
    message = f"the tenant {tenant!r} may have {limit}; {found}"
    return ResourceExhausted(
        f"{message}; come back in {seconds:.1f} s",
        retry_after=seconds,
        reason="QUOTA_EXCEEDED",
        quota=(name, f"tenant:{tenant}", message),
    )
