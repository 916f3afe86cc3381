"""A database that fails is told to every caller, and logged by who writes and by who reads, once."""

from __future__ import annotations

import pytest

from ledger.errors import NotWritten, StoreDamaged, StoreError
from services.ledger.ledger_errors import to_kolm_error


@pytest.mark.parametrize(
    ("error", "lines"),
    [(NotWritten("the disk is full"), 0), (StoreError("cannot read"), 0), (StoreDamaged("cannot read"), 1)],
)
def test_a_call_that_fails_costs_no_line_of_the_log_unless_the_database_is_damaged(
    error: StoreError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    told = to_kolm_error(error, "entry", "7")
    assert (told.reason, "full" in str(told)) == ("STORE_FAILED", False)
    assert len(caplog.records) == lines
