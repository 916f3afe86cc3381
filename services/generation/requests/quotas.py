"""Quotas of tenants, as in `--quota acme=requests:8,tokens:60000`, and the counters that enforce them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from services.runtime.errors import ResourceExhausted
from services.runtime.usage import checked_name

ANY_TENANT = "*"
"""The tenant whose limits apply to tenants without a quota, and to limits that a tenant's quota leaves out."""

NO_LIMIT = "unlimited"

_FORM = (
    "expected TENANT=NAME:LIMIT,…, with the names requests, tokens and grammar_seconds, and * for every other tenant"
)
_MINUTE = 60.0
_SOON = 1.0  # seconds: until one of the requests in flight may have ended
_MOST_IDLE = 4096


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one tenant; None is no limit.

    Attributes:
        requests: in flight; a request of n choices counts n.
        tokens: of prompts and outputs, a minute.
        grammar_seconds: CPU seconds of compiling grammars, a minute.
    """

    requests: int | None = None
    tokens: int | None = None
    grammar_seconds: int | None = None

    def part(self, servers: int) -> Quota:
        """The share of one of `servers`, rounded up."""
        limits = (self.requests, self.tokens, self.grammar_seconds)
        return Quota(*(None if limit is None else -(-limit // servers) for limit in limits))


NAMES = tuple(field.name for field in fields(Quota))


def read_quotas(written: Sequence[str]) -> Mapping[str, Quota]:
    """Quotas by tenant, always with a quota for `*`. Raises ValueError with the expected form."""
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


@dataclass(slots=True)
class Bucket:
    """A bucket that holds `a_minute` units and is filled with as many each minute. Times are seconds of one monotonic
    clock.
    """

    a_minute: int
    level: float = field(init=False)
    _at: float = 0.0

    def __post_init__(self) -> None:
        self.level = self.a_minute

    def wait(self, units: float, now: float) -> float:
        """Seconds until `units` may be taken; 0 is now. A full bucket allows more units than it holds."""
        self._flow(now)
        missing = min(units, self.a_minute) - self.level
        return max(missing, 0.0) * _MINUTE / self.a_minute

    def take(self, units: float, now: float) -> None:
        """Take units; the level may fall below 0."""
        self._flow(now)
        self.level -= units

    def give_back(self, units: float) -> None:
        """Give back units that were taken and not used."""
        self.level = min(self.level + units, self.a_minute)

    def _flow(self, now: float) -> None:
        self.level = min(self.level + (now - self._at) * self.a_minute / _MINUTE, self.a_minute)
        self._at = now


@dataclass(slots=True)
class _Tenant:
    quota: Quota
    in_flight: int = 0
    tokens: Bucket | None = field(init=False)
    grammars: Bucket | None = field(init=False)  # CPU seconds

    def __post_init__(self) -> None:
        self.tokens, self.grammars = (
            None if limit is None else Bucket(limit) for limit in (self.quota.tokens, self.quota.grammar_seconds)
        )

    def is_idle(self, now: float) -> bool:
        """Whether nothing is in flight and all buckets are full, as for a new tenant."""
        buckets = (bucket for bucket in (self.tokens, self.grammars) if bucket is not None)
        return not self.in_flight and all(bucket.wait(bucket.a_minute, now) == 0 for bucket in buckets)


@dataclass(slots=True)
class Grant:
    """A request that was let in. Call `end` once."""

    _tenant: _Tenant
    _choices: int
    _tokens: int

    def end(self, used: int) -> None:
        """`used`: tokens of its prompt and its outputs."""
        self._tenant.in_flight -= self._choices
        if self._tenant.tokens is not None:
            self._tenant.tokens.give_back(self._tokens - used)


@dataclass(slots=True)
class TenantQuotas:
    """Counters of each tenant's use of its quota, also a `GrammarBudget`. Used on one event loop."""

    quotas: Mapping[str, Quota]
    clock: Callable[[], float] = time.monotonic
    _tenants: dict[str, _Tenant] = field(default_factory=dict)

    def let_in(self, name: str, choices: int, tokens: int) -> Grant:
        """`tokens` is the most that the request may take; unused tokens are given back when it ends.

        Raises ResourceExhausted, reason QUOTA_EXCEEDED.
        """
        tenant, now = self._tenant(name), self.clock()
        quota = tenant.quota
        if quota.requests is not None and tenant.in_flight + choices > quota.requests:
            found = f"{tenant.in_flight} in flight"
            raise _exceeded(name, "requests", f"{quota.requests} requests at the same time", found, _SOON)
        if tenant.tokens is not None:
            if seconds := tenant.tokens.wait(tokens, now):
                found = f"this request may take {tokens}, and {max(tenant.tokens.level, 0):.0f} are left"
                raise _exceeded(name, "tokens", f"{quota.tokens} tokens a minute", found, seconds)
            tenant.tokens.take(tokens, now)
        tenant.in_flight += choices
        return Grant(tenant, choices, tokens)

    def check_grammars(self, name: str) -> None:
        """Raises ResourceExhausted, reason QUOTA_EXCEEDED, while the tenant's grammars have taken more than its quota.

        A grammar's cost is known only afterwards, so that the last grammar of a minute may exceed the quota.
        """
        tenant = self._tenant(name)
        if tenant.grammars is not None and (seconds := tenant.grammars.wait(0, self.clock())):
            found = f"{-tenant.grammars.level:.1f} more were used"
            limit = f"{tenant.quota.grammar_seconds} CPU seconds of grammars a minute"
            raise _exceeded(name, "grammar_seconds", limit, found, seconds)

    def charge_grammar(self, name: str, seconds: float) -> None:
        """Count the CPU seconds of a grammar, which was compiled, refused or too slow."""
        if (bucket := self._tenant(name).grammars) is not None:
            bucket.take(seconds, self.clock())

    def _tenant(self, name: str) -> _Tenant:
        if name not in self._tenants:
            if len(self._tenants) >= _MOST_IDLE:
                self._forget()
            quota = self.quotas.get(name, self.quotas[ANY_TENANT])
            self._tenants[name] = _Tenant(quota)
        return self._tenants[name]

    def _forget(self) -> None:
        now = self.clock()
        self._tenants = {name: each for name, each in self._tenants.items() if not each.is_idle(now)}


def _exceeded(tenant: str, name: str, limit: str, found: str, seconds: float) -> ResourceExhausted:
    message = f"the tenant {tenant!r} may have {limit}; {found}"
    return ResourceExhausted(
        f"{message}; come back in {seconds:.1f} s",
        retry_after=seconds,
        reason="QUOTA_EXCEEDED",
        quota=(name, f"tenant:{tenant}", message),
    )
