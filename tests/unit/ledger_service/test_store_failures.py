"""A database that fails is told to every caller, and logged where nobody else logs it."""

from __future__ import annotations

import pytest

from ledger.errors import NotWritten, StoreError
from services.ledger.errors import to_kolm_error


@pytest.mark.parametrize(("error", "lines"), [(NotWritten("the disk is full"), 0), (StoreError("cannot read"), 1)])
def test_an_entry_that_was_not_written_costs_no_line_of_the_log(
    error: StoreError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = to_kolm_error(error, "entry", "7")
    assert (told.reason, "full" in str(told)) == ("STORE_FAILED", False)
    assert len(caplog.records) == lines
