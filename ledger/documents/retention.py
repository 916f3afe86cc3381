"""Retention: how long operators have contents kept, and the log's own entry where it has carried that out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from ledger.encoding.fields import Fields
from ledger.encoding.timestamp import moved
from ledger.errors import FormatError

LONGEST_DAYS = 36_500
MOST_TENANTS = 64
"""Tenants with a policy of their own; an expiry names them all."""

_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Retention:
    """A `kolm.retention.v1` document, signed by a key of role `operator`; binds until the next one for the same tenant.

    The content of a receipt is kept for `days` days from its issue, without limit where that is None. With `tenant`
    None, it is about all tenants that have no policy of their own.
    """

    TYPE: ClassVar[str] = "kolm.retention.v1"

    tenant: str | None
    days: int | None
    issued_at: str

    def to_document(self) -> dict[str, Any]:
        return {"type": self.TYPE, "tenant": self.tenant, "days": self.days, "issued_at": self.issued_at}

    @classmethod
    def from_document(cls, document: object) -> Retention:
        """The policy that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        policy = cls(
            tenant=fields.optional("tenant", fields.text),
            days=fields.optional("days", lambda name: fields.integer(name, 1, LONGEST_DAYS)),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return policy

    def erases_before(self, now: str) -> str | None:
        """Receipts issued earlier than this have outlived the policy at `now`; None where it has no limit."""
        return None if self.days is None else moved(now, -self.days * _DAY_SECONDS)


@dataclass(frozen=True, slots=True)
class Expiry:
    """A `kolm.expiry.v1` document, signed by a key of role `log`: contents that the policy at `retention_index` ended.

    Erased are the contents of all receipts before entry `end_index` that were issued earlier than `issued_before`:
    those of `tenant`, or, where that is None, of all but `except_tenants`, which have policies of their own. The store
    removes them in the transaction that appends this.
    """

    TYPE: ClassVar[str] = "kolm.expiry.v1"

    retention_index: int
    tenant: str | None
    except_tenants: tuple[str, ...]
    issued_before: str
    end_index: int
    issued_at: str

    def to_document(self) -> dict[str, Any]:
        return {
            "type": self.TYPE,
            "retention_index": self.retention_index,
            "tenant": self.tenant,
            "except_tenants": list(self.except_tenants),
            "issued_before": self.issued_before,
            "end_index": self.end_index,
            "issued_at": self.issued_at,
        }

    @classmethod
    def from_document(cls, document: object) -> Expiry:
        """The expiry that a parsed JSON value holds. Raises FormatError naming the first field that is wrong."""
        fields = Fields(document)
        fields.constant("type", cls.TYPE)
        expiry = cls(
            retention_index=fields.integer("retention_index"),
            tenant=fields.optional("tenant", fields.text),
            except_tenants=_tenants(fields),
            issued_before=fields.time("issued_before"),
            end_index=fields.integer("end_index", 1),
            issued_at=fields.time("issued_at"),
        )
        fields.close()
        return expiry

    def covers(self, index: int, tenant: str, issued_at: str) -> bool:
        """Whether the content of the receipt at `index` is among the erased."""
        theirs = tenant == self.tenant if self.tenant is not None else tenant not in self.except_tenants
        return theirs and index < self.end_index and issued_at < self.issued_before


def in_force(policies: Iterable[tuple[int, Retention]]) -> dict[str | None, tuple[int, Retention]]:
    """The newest policy of each tenant with its index, of entries in the order of the log."""
    return {policy.tenant: (index, policy) for index, policy in policies}


def own_tenants(newest: Iterable[str | None]) -> tuple[str, ...]:
    """The tenants with policies of their own, as an expiry names them."""
    return tuple(sorted(tenant for tenant in newest if tenant is not None))


def check_retention(policy: Retention, before: Iterable[tuple[int, Retention]]) -> None:
    """Raises FormatError where too many tenants have policies of their own."""
    if len({*own_tenants(in_force(before)), policy.tenant} - {None}) > MOST_TENANTS:
        raise FormatError("tenant", f"at most {MOST_TENANTS} tenants have a policy of their own")


def check_expiry(index: int, expiry: Expiry, before: Iterable[tuple[int, Retention]]) -> None:
    """Raises FormatError unless entry `index` erases what the policies before it say, and nothing else."""
    newest = in_force(before)
    at, policy = newest.get(expiry.tenant, (-1, None))
    if policy is None or at != expiry.retention_index:
        raise FormatError("retention_index", f"entry {expiry.retention_index} is not the policy in force")
    latest = policy.erases_before(expiry.issued_at)
    if latest is None or expiry.issued_before > latest:
        raise FormatError("issued_before", f"is {expiry.issued_before}, the policy erases before {latest or 'no time'}")
    if expiry.end_index > index:
        raise FormatError("end_index", f"is {expiry.end_index}, beyond the entries before this one")
    if expiry.except_tenants != (() if expiry.tenant is not None else own_tenants(newest)):
        raise FormatError("except_tenants", "are not the tenants with policies of their own")


def _tenants(fields: Fields) -> tuple[str, ...]:
    names = fields.array("except_tenants")
    if len(names) > MOST_TENANTS:
        raise FormatError(fields.path("except_tenants"), f"expected at most {MOST_TENANTS} tenants")
    if not all(isinstance(name, str) and 0 < len(name) <= 256 for name in names):
        raise FormatError(fields.path("except_tenants"), "expected names of 1 to 256 characters")
    if any(left >= right for left, right in pairwise(names)):
        raise FormatError(fields.path("except_tenants"), "expected rising names, each once")
    return tuple(names)
