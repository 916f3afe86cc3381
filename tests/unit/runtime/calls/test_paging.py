from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.calls import page_position, page_size, page_token
from services.runtime.errors import InvalidArgument

POSITIONS = st.integers(0, 2**64 - 1)


@given(POSITIONS, st.binary(max_size=40))
def test_a_token_leads_back_to_its_position(position: int, filters: bytes) -> None:
    assert page_position(page_token("receipts", filters, position), "receipts", filters) == position


def test_the_empty_token_is_the_first_page() -> None:
    assert page_position("", "receipts", b"tenant=a") == 0


@given(POSITIONS)
def test_a_token_of_another_list_or_filter_is_refused(position: int) -> None:
    token = page_token("receipts", b"tenant=a", position)
    for kind, filters in (("verdicts", b"tenant=a"), ("receipts", b"tenant=b"), ("receiptstenant=a", b"")):
        with pytest.raises(InvalidArgument) as caught:
            page_position(token, kind, filters)
        assert [violation.field for violation in caught.value.violations] == ["page_token"]


@given(st.text(min_size=1, max_size=60))
def test_junk_is_refused_and_never_crashes(junk: str) -> None:
    with pytest.raises(InvalidArgument):
        page_position(junk, "receipts", b"")


@given(POSITIONS, st.integers(0, 35), st.integers(0, 25))
def test_a_token_with_one_character_changed_is_refused(position: int, place: int, shift: int) -> None:
    token = page_token("receipts", b"", position)
    changed = token[:place] + chr(ord("A") + shift) + token[place + 1 :]
    if changed != token:
        with pytest.raises(InvalidArgument):
            page_position(changed, "receipts", b"")


@pytest.mark.parametrize(("requested", "expected"), [(0, 100), (1, 1), (1000, 1000), (4_000_000_000, 1000)])
def test_page_sizes_have_a_default_and_a_maximum(requested: int, expected: int) -> None:
    assert page_size(requested) == expected
