"""The newest matches, whatever the windows hold, in bounded looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.client.ledger.log import ReceiptQuery
from services.explorer.receipts import MOST_ROWS, newest_receipts


@dataclass(frozen=True)
class Row:
    index: int


class Log:
    """Lists matches as a ledger does; remembers the longest list that somebody read."""

    def __init__(self, matches: set[int]) -> None:
        self._matches = matches
        self.longest = 0

    def __call__(self, query: ReceiptQuery) -> Iterator[Any]:
        assert query.min_index is not None
        assert query.max_index is not None
        for count, index in enumerate(sorted(self._matches & set(range(query.min_index, query.max_index + 1))), 1):
            self.longest = max(self.longest, count)
            yield Row(index)


@given(st.sets(st.integers(0, 300)), st.integers(0, 301), st.integers(1, 20), st.integers(0, 50))
def test_pages_together_are_all_matches_newest_first(matches: set[int], size: int, limit: int, lowest: int) -> None:
    log, end, seen = Log(matches), size, []
    while True:
        page = newest_receipts(log, ReceiptQuery(min_index=lowest), end, limit)
        assert len(page.receipts) <= limit
        seen += [each.index for each in page.receipts]
        if not page.older:
            break
        assert page.reached < end
        end = page.reached
    assert seen == sorted((each for each in matches if lowest <= each < size), reverse=True)


def test_no_look_reads_more_than_a_bounded_number_of_rows() -> None:
    log = Log(set(range(20_000)))
    page = newest_receipts(log, ReceiptQuery(), 100_000, 25)
    assert [each.index for each in page.receipts] == list(range(19_999, 19_974, -1))
    assert log.longest <= MOST_ROWS + 1
