"""One tenant's quota, and how settings write it: `acme=requests:8,tokens:60000,bytes:1GiB`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

ANY_TENANT = "*"
"""In the place of a tenant: the limits of tenants that the settings do not name, and those that others leave out."""

NO_LIMIT = "unlimited"

_FORM = "expected TENANT=NAME:LIMIT,…, with names from requests, tokens and bytes, and * for every other tenant"
_BYTES = TypeAdapter(ByteSize)


@dataclass(frozen=True, slots=True)
class Quota:
    """None is no limit.

    `requests`: in flight, one of n choices counts n. `tokens`: of prompts and outputs, a minute. `bytes`: of content
    that the ledger keeps.
    """

    requests: int | None = None
    tokens: int | None = None
    bytes: int | None = None

    def part(self, servers: int) -> Quota:
        """Of one of `servers` that share it, rounded up. Bytes stay whole: the ledger counts those of all."""
        requests, tokens = (None if whole is None else -(-whole // servers) for whole in (self.requests, self.tokens))
        return Quota(requests, tokens, self.bytes)


NAMES = tuple(field.name for field in fields(Quota))


def read_quotas(written: Sequence[str]) -> Mapping[str, Quota]:
    """By tenant; the one of `*` is always there. Raises ValueError that says what was expected."""
    given: dict[str, dict[str, int | None]] = {ANY_TENANT: {}}
    for each in written:
        tenant, _, limits = each.rpartition("=")
        if not tenant or not limits:
            raise ValueError(f"{_FORM}, got {each!r}")
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
        value: Any = _BYTES.validate_python(limit) if name == "bytes" else int(limit)
    except (ValidationError, ValueError):
        value = 0
    if value < 1:
        raise ValueError(f"expected {name}: a whole number from 1 on, or {NO_LIMIT}, got {limit!r}")
    return name, int(value)
