"""Erasures of content: the one that somebody asks for, the policies by which operators have contents kept, and the
log's own entry where it has carried one out.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, ClassVar

from msgspec import Meta

from ledger.encoding.document import Count, Document, Positive, Reason, ReceiptId, Text, Time
from ledger.encoding.text_forms import moved
from ledger.errors import FormatError

LONGEST_DAYS = 36_500
MOST_TENANTS = 64
"""Tenants with a policy of their own; an expiry names them all."""

_DAY_SECONDS = 86_400


class Erasure(Document, tag="kolm.erasure.v1", frozen=True):
    """A `kolm.erasure.v1` document, signed by a key of role `operator`, or, where the receipt's tenant has asked for it
    by a credential of its own, of role `log`; names the receipt at `receipt_index`.

    The store removes the receipt's token ids and salts in the transaction that appends this. The receipt itself stays:
    without the salts, its commitments say nothing about prompt and output.
    """

    SIGNERS: ClassVar = ("operator", "log")

    receipt_id: ReceiptId
    receipt_index: Count
    reason: Reason
    issued_at: Time

    @classmethod
    def asked_for(cls, receipt_id: str, receipt_index: int, tenant: str, issued_at: str) -> Erasure:
        """The document that the log signs when the receipt's tenant asks."""
        return cls(receipt_id, receipt_index, f"asked for by the tenant {tenant}", issued_at)


class Retention(Document, tag="kolm.retention.v1", frozen=True):
    """A `kolm.retention.v1` document, signed by a key of role `operator`; binds until the next one for the same tenant.

    The content of a receipt is kept for `days` days from its issue, without limit where that is None. With `tenant`
    None, it is about all tenants that have no policy of their own.
    """

    SIGNERS: ClassVar = ("operator",)

    tenant: Text | None
    days: Annotated[int, Meta(ge=1, le=LONGEST_DAYS)] | None
    issued_at: Time

    def erases_before(self, now: str) -> str | None:
        """Receipts issued earlier than this have outlived the policy at `now`; None where it has no limit."""
        return None if self.days is None else moved(now, -self.days * _DAY_SECONDS)


class Expiry(Document, tag="kolm.expiry.v1", frozen=True):
    """A `kolm.expiry.v1` document, signed by a key of role `log`: contents that the policy at `retention_index` ended.

    Erased are the contents of all receipts before entry `end_index` that were issued earlier than `issued_before`:
    those of `tenant`, or, where that is None, of all but `except_tenants`, which have policies of their own. The store
    removes them in the transaction that appends this.
    """

    SIGNERS: ClassVar = ("log",)

    retention_index: Count
    tenant: Text | None
    except_tenants: Annotated[tuple[Text, ...], Meta(max_length=MOST_TENANTS)]
    issued_before: Time
    end_index: Positive
    issued_at: Time

    def check(self) -> None:
        if any(left >= right for left, right in pairwise(self.except_tenants)):
            raise FormatError("except_tenants", "expected rising names, each once")

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
