"""Erasures of content: erasures on request, retention policies of operators, and expiries, which the log appends when
it has carried out a policy.
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
"""The most tenants with their own policy; an expiry names them all."""

_DAY_SECONDS = 86_400


class Erasure(Document, tag="kolm.erasure.v1", frozen=True):
    """A `kolm.erasure.v1` document, signed by a key of role `operator` or, if the receipt's tenant asked for it with
    its own credential, of role `log`; names the receipt at `receipt_index`.

    The store removes the receipt's token ids and salts in the transaction that appends this. The receipt stays: without
    the salts, its commitments reveal nothing about prompt and output.
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
    """A `kolm.retention.v1` document, signed by a key of role `operator`; in force until the next policy for the same
    tenant.

    The content of a receipt is kept for `days` days from its issue, without limit if that is None. With `tenant` None,
    it applies to all tenants without their own policy.
    """

    SIGNERS: ClassVar = ("operator",)

    tenant: Text | None
    days: Annotated[int, Meta(ge=1, le=LONGEST_DAYS)] | None
    issued_at: Time

    def erases_before(self, now: str) -> str | None:
        """The issue time before which contents have expired at `now`; None without a limit."""
        return None if self.days is None else moved(now, -self.days * _DAY_SECONDS)


class Expiry(Document, tag="kolm.expiry.v1", frozen=True):
    """A `kolm.expiry.v1` document, signed by a key of role `log`: contents erased under the policy at
    `retention_index`.

    Erased are the contents of all receipts before entry `end_index` that were issued earlier than `issued_before`: of
    `tenant` or, if that is None, of all tenants except `except_tenants`, which have their own policies. The store
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
            raise FormatError("except_tenants", "expected names in ascending order, each once")

    def covers(self, index: int, tenant: str, issued_at: str) -> bool:
        """Whether it erases the content of the receipt at `index`."""
        theirs = tenant == self.tenant if self.tenant is not None else tenant not in self.except_tenants
        return theirs and index < self.end_index and issued_at < self.issued_before


def in_force(policies: Iterable[tuple[int, Retention]]) -> dict[str | None, tuple[int, Retention]]:
    """The newest policy of each tenant with its index, from entries in the order of the log."""
    return {policy.tenant: (index, policy) for index, policy in policies}


def tenants_with_policy(newest: Iterable[str | None]) -> tuple[str, ...]:
    """The tenants with their own policies, as an expiry names them."""
    return tuple(sorted(tenant for tenant in newest if tenant is not None))


def check_retention(policy: Retention, before: Iterable[tuple[int, Retention]]) -> None:
    """Raises FormatError if too many tenants have their own policies."""
    if len({*tenants_with_policy(in_force(before)), policy.tenant} - {None}) > MOST_TENANTS:
        raise FormatError("tenant", f"at most {MOST_TENANTS} tenants have their own policy")


def check_expiry(index: int, expiry: Expiry, before: Iterable[tuple[int, Retention]]) -> None:
    """Raises FormatError if entry `index` erases more than the policies before it allow, or names wrong policies."""
    newest = in_force(before)
    at, policy = newest.get(expiry.tenant, (-1, None))
    if policy is None or at != expiry.retention_index:
        raise FormatError("retention_index", f"entry {expiry.retention_index} is not the policy in force")
    latest = policy.erases_before(expiry.issued_at)
    if latest is None or expiry.issued_before > latest:
        limit = "nothing" if latest is None else f"before {latest}"
        raise FormatError("issued_before", f"is {expiry.issued_before}, the policy erases {limit}")
    if expiry.end_index > index:
        raise FormatError("end_index", f"is {expiry.end_index}, beyond the entries before this one")
    if expiry.except_tenants != (() if expiry.tenant is not None else tenants_with_policy(newest)):
        raise FormatError("except_tenants", "are not the tenants with their own policies")
