"""The explorer's lists, without a server."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.log.receipt_filter import ReceiptFilter
from services.client.ledger.ledger import MOST_ROWS, newest_receipts
from services.explorer import pages
from services.explorer.pages import shown_fields, shown_text
from services.explorer.receipts import read_search
from tests.mutations import replace
from tests.unit.ledger.builders import receipt


@dataclass(frozen=True)
class Row:
    index: int


class Log:
    """Lists matches as a ledger does; keeps the length of the longest list that was read."""

    def __init__(self, matches: set[int]) -> None:
        self._matches = matches
        self.longest = 0

    def __call__(self, query: ReceiptFilter) -> Iterator[Any]:
        assert query.min_index is not None
        assert query.max_index is not None
        for count, index in enumerate(sorted(self._matches & set(range(query.min_index, query.max_index + 1))), 1):
            self.longest = max(self.longest, count)
            yield Row(index)


@given(st.sets(st.integers(0, 300)), st.integers(0, 301), st.integers(1, 20), st.integers(0, 50))
def test_pages_together_are_all_matches_newest_first(matches: set[int], size: int, limit: int, lowest: int) -> None:
    log, end, seen = Log(matches), size, []
    while True:
        page = newest_receipts(log, ReceiptFilter(min_index=lowest), end, limit)
        assert len(page.receipts) <= limit
        seen += [each.index for each in page.receipts]
        if not page.older:
            break
        assert page.reached < end
        end = page.reached
    assert seen == sorted((each for each in matches if lowest <= each < size), reverse=True)


@pytest.mark.parametrize("limit", [25, MOST_ROWS, 3 * MOST_ROWS])
def test_no_look_reads_more_than_a_bounded_number_of_rows(limit: int) -> None:
    log = Log(set(range(20_000)))
    page = newest_receipts(log, ReceiptFilter(), 100_000, limit)
    assert [each.index for each in page.receipts] == list(range(19_999, 19_999 - limit, -1))
    assert log.longest <= MOST_ROWS + 1


def test_what_cannot_be_read_is_a_problem_of_its_field_and_no_filter() -> None:
    wrong = {
        "outcome": "GOOD",
        "start_time": "0001-01-01T00:00:00+01:00",  # before the first year in UTC
        "end_time": "soon",
        "min_index": "-1",
        "max_index": "9" * 17,
        "commitment": "sha256:AB",
    }
    search = read_search({**wrong, "before": "x"})
    assert set(search.problems) == set(wrong)
    assert search.before is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        (0.5, "0.5"),
        (1.0, "1"),
        (1e-7, "1e-7"),
        (["\n\n"], '["\\n\\n"]'),
        ("plain ünïcode", "plain ünïcode"),
        ("a\u202eb\u200bc\x00d", "a\\u{202e}b\\u{200b}c\\u{0}d"),
        ("a\U00013439b", "a\\u{13439}b"),
    ],
)
def test_a_value_is_shown_so_that_nothing_hides_in_it(value: object, text: str) -> None:
    assert shown_text(value) == text


def test_the_browser_hides_the_same_letters_and_all_that_this_python_knows() -> None:
    (browser,) = re.findall(r"const HIDDEN =\s+/(.*)/gu;", (pages.HERE / "static/shown.js").read_text("utf-8"))
    assert re.sub(r"\\u\{(\w+)\}", lambda found: f"\\U{found[1]:0>8}", browser) == pages._HIDDEN.pattern
    known = [chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert [letter for letter in known if not pages._HIDDEN.fullmatch(letter)] == []


def test_every_field_of_a_document_has_its_path() -> None:
    document = {"a": 1, "b": {"c": None, "d": {"e": [1, 2]}}}
    found = [(each.path, each.text) for each in shown_fields(document)]
    assert found == [("a", "1"), ("b.c", "none"), ("b.d.e", "[1,2]")]


@pytest.mark.parametrize(
    ("speedup", "basis", "shown"), [(1.5, "replayed", 1.5), (1.5, "calibrated", None), (None, None, None)]
)
def test_only_a_speedup_that_a_replay_measured_is_shown(
    speedup: float | None, basis: str | None, shown: float | None
) -> None:
    block = replace(receipt().spec_decode, wall_clock_speedup=speedup, speedup_basis=basis)
    assert receipt(0, spec_decode=block).measured_speedup == shown
