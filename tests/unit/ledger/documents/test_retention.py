"""Ends of retention by a policy, and contents that an expiry may erase."""

import pytest

from ledger.documents.erasure import MOST_TENANTS, Expiry, Retention, check_expiry, check_retention, in_force
from ledger.errors import FormatError
from tests.mutations import replace
from tests.unit.ledger.builders import at, expiry, retention

GENERAL, OWN, LONGER = (1, retention()), (2, retention(90, "acme")), (5, retention(60))


def test_the_newest_policy_of_a_tenant_is_in_force() -> None:
    assert in_force([GENERAL, OWN, LONGER]) == {None: LONGER, "acme": OWN}


def test_an_expiry_covers_what_is_old_and_theirs() -> None:
    general = expiry(1, 10, except_tenants=("acme",))
    assert general.covers(3, "zeta", at(0))
    assert not general.covers(3, "acme", at(0))
    assert not general.covers(10, "zeta", at(0))
    assert not general.covers(3, "zeta", at(1))
    assert replace(general, tenant="acme", except_tenants=()).covers(3, "acme", at(0))
    assert not replace(general, tenant="acme", except_tenants=()).covers(3, "zeta", at(0))


def test_an_expiry_that_carries_out_its_policy_may_stand() -> None:
    check_expiry(9, expiry(1, 9), [GENERAL])
    check_expiry(9, expiry(1, 9, except_tenants=("acme",)), [GENERAL, OWN])
    check_expiry(9, expiry(2, 9, 90, tenant="acme"), [GENERAL, OWN])


@pytest.mark.parametrize(
    ("wrong", "policies", "field"),
    [
        (expiry(1, 9), [], "retention_index"),
        (expiry(2, 9), [GENERAL], "retention_index"),
        (expiry(1, 9), [GENERAL, LONGER], "retention_index"),  # replaced by a longer one
        (expiry(1, 9, tenant="acme"), [GENERAL], "retention_index"),
        (expiry(1, 9, issued_before=at(2)), [GENERAL], "issued_before"),
        (expiry(1, 9), [(1, retention(None))], "issued_before"),
        (expiry(1, 10), [GENERAL], "end_index"),
        (expiry(1, 9), [GENERAL, OWN], "except_tenants"),
        (expiry(1, 9, except_tenants=("zeta",)), [GENERAL], "except_tenants"),
        (expiry(2, 9, 90, tenant="acme", except_tenants=("zeta",)), [GENERAL, OWN], "except_tenants"),
    ],
)
def test_an_expiry_erases_nothing_else(wrong: Expiry, policies: list[tuple[int, Retention]], field: str) -> None:
    with pytest.raises(FormatError) as refused:
        check_expiry(9, wrong, policies)
    assert refused.value.field == field


def test_only_so_many_tenants_have_policies_of_their_own() -> None:
    full = [(number, retention(7, f"tenant {number}")) for number in range(MOST_TENANTS)]
    check_retention(retention(8, "tenant 1"), full)
    check_retention(retention(8), full)
    with pytest.raises(FormatError):
        check_retention(retention(8, "one more"), full)


@pytest.mark.parametrize("names", [["b", "a"], ["a", "a"], [""], [1], ["a"] * (MOST_TENANTS + 1), None])
def test_tenants_are_named_in_order_and_once(names: object) -> None:
    with pytest.raises(FormatError, match="except_tenants"):
        Expiry.from_document(expiry(1, 9).to_document() | {"except_tenants": names})
