"""Words of the command line as values, and errors that name the option."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from services.cli.failures.exits import UsageError
from services.cli.values.parsing import age, database_place, moment, numbers


def test_a_database_is_a_file_or_a_url() -> None:
    assert database_place("a/ledger.sqlite3") == Path("a/ledger.sqlite3")
    assert database_place("postgresql+psycopg://host/ledger") == "postgresql+psycopg://host/ledger"


@pytest.mark.parametrize("text", ["2026-01-02T03:00:00", "2026-01-02T03:00:00Z", "2026-01-02T05:00:00+02:00"])
def test_a_time_is_in_utc_if_it_names_no_offset(text: str) -> None:
    assert moment("--since", text) == datetime(2026, 1, 2, 3, tzinfo=UTC)


def test_ages_have_units_and_numbers_have_commas() -> None:
    assert (age("--older-than", "90m"), age("--older-than", "7d")) == (timedelta(minutes=90), timedelta(days=7))
    assert (numbers("--n", "1, 2", int), numbers("--n", "0,0.7", float)) == ((1, 2), (0.0, 0.7))


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (moment, "soon"),
        (moment, "0001-01-01T00:00:00+23:00"),
        (age, "24"),
        (age, "-1h"),
        (lambda option, text: numbers(option, text, int), "1,x"),
        (lambda option, text: numbers(option, text, int), ""),
    ],
)
def test_wrong_words_are_refused_under_the_option_s_name(parse: Callable[[str, str], object], text: str) -> None:
    with pytest.raises(UsageError, match=f"--option: expected .*, got {text!r}".replace("+", r"\+")):
        parse("--option", text)
