"""How values are shown."""

from __future__ import annotations

import pytest

from services.explorer.pages import shown_fields, shown_text


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
    ],
)
def test_a_value_is_shown_so_that_nothing_hides_in_it(value: object, text: str) -> None:
    assert shown_text(value) == text


def test_every_field_of_a_document_has_its_path() -> None:
    document = {"a": 1, "b": {"c": None, "d": {"e": [1, 2]}}}
    assert list(shown_fields(document)) == [("a", "1"), ("b.c", "none"), ("b.d.e", "[1,2]")]
