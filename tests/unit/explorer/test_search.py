"""The form's fields."""

from __future__ import annotations

from datetime import UTC, datetime

from services.explorer.receipts import read_search


def test_fields_become_a_query_and_go_back_into_links() -> None:
    search = read_search({"tenant": " a&b ", "method": "rest", "start_time": "2026-01-02", "min_index": "7", "x": "y"})
    assert (search.query.tenant, search.query.method, search.query.min_index) == ("a&b", "rest", 7)
    assert search.query.start_time == datetime(2026, 1, 2, tzinfo=UTC)
    assert search.older(40) == "tenant=a%26b&method=rest&start_time=2026-01-02&min_index=7&before=40"
    assert not search.problems


def test_what_cannot_be_read_is_a_problem_of_its_field_and_no_filter() -> None:
    wrong = {
        "outcome": "GOOD",
        "start_time": "soon",
        "min_index": "-1",
        "max_index": "9" * 17,
        "commitment": "sha256:AB",
    }
    search = read_search({**wrong, "before": "x"})
    assert set(search.problems) == set(wrong)
    assert search.before is None
