"""The account of a ledger that is killed: that it adds up, and that it sees what would be wrong."""

from pathlib import Path

from benchmarks.ledger.kills import _accounted, killed_and_counted
from benchmarks.ledger.service import LedgerLocation


def test_a_ledger_that_is_killed_under_appenders_loses_and_doubles_nothing(tmp_path: Path) -> None:
    location = LedgerLocation(tmp_path)
    account = killed_and_counted(location, kills=2, appenders=3)
    assert account.ok, account
    assert account.kills == 2
    assert account.logged >= account.acknowledged >= 3
    lost = _accounted(location, 2, [("019b7ca9-9316-7d0d-af50-b2f7f1613ad1", 0)])
    assert (lost.lost, lost.ok) == (1, False)
