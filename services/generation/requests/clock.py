"""The difference between this machine's clock and the ledger's, which refuses receipts dated in the future."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from ledger.documents.dates import MOST_SKEW_SECONDS

_log = logging.getLogger(__name__)

_WARNED_SKEW = timedelta(seconds=5)
_MAX_SKEW = timedelta(seconds=MOST_SKEW_SECONDS)


class LedgerClock:
    """The newest comparison of the two clocks. Before the first comparison they count as equal."""

    def __init__(self) -> None:
        self.skew = timedelta()
        """The least time by which this clock is ahead of the ledger's; negative if it is behind."""
        self._has_warned = self._is_refusing = False

    @property
    def problem(self) -> str | None:
        """The reason why no request may be served, with the remedy; None if the clocks agree well enough."""
        if abs(self.skew) <= _MAX_SKEW:
            return None
        return (
            f"this server's clock is {self._description} (limit {MOST_SKEW_SECONDS} s); compare "
            "`date -u` on both machines and set the clock that is wrong"
        )

    def compare(self, asked: datetime, shown: datetime, answered: datetime) -> None:
        """Compare the clocks. The ledger's clock showed `shown` at some time between `asked` and `answered` of this
        clock; that uncertainty does not count as skew.
        """
        self.skew = max(asked - shown, timedelta()) or min(answered - shown, timedelta())
        if self.problem is not None and not self._is_refusing:
            _log.error("refusing requests: %s", self.problem)
        elif self.problem is None and self._is_refusing:
            _log.info("serving requests again: this server's clock is %s", self._description)
        elif abs(self.skew) > _WARNED_SKEW and not self._has_warned:
            _log.warning("this server's clock is %s; check its time synchronisation (NTP)", self._description)
        self._is_refusing, self._has_warned = self.problem is not None, abs(self.skew) > _WARNED_SKEW

    @property
    def _description(self) -> str:
        return (
            f"{abs(self.skew).total_seconds():.0f} s {'behind' if self.skew < timedelta() else 'ahead of'} the ledger's"
        )
