"""The difference between this machine's clock and the ledger's, which refuses receipts dated in the future."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from ledger.documents.dates import MOST_SKEW_SECONDS

_log = logging.getLogger(__name__)

_WORTH_A_LINE = timedelta(seconds=5)
_MOST = timedelta(seconds=MOST_SKEW_SECONDS)


class LedgerClock:
    """The newest comparison of the two clocks. Before the first comparison they count as equal."""

    def __init__(self) -> None:
        self.skew = timedelta()
        """The least time by which this clock is ahead of the ledger's; negative if it is behind."""
        self._warned = self._refused = False

    @property
    def problem(self) -> str | None:
        """The reason why no request may be served, with the remedy; None if the clocks agree well enough."""
        if abs(self.skew) <= _MOST:
            return None
        return (
            f"this server's clock is {self._words}, more than the {MOST_SKEW_SECONDS} s that it may be; compare "
            "`date -u` on both machines and set the clock that is wrong"
        )

    def compare(self, asked: datetime, shown: datetime, answered: datetime) -> None:
        """Compare the clocks: the ledger's showed `shown` between two moments of this machine's, whose difference
        counts for neither clock.
        """
        self.skew = max(asked - shown, timedelta()) or min(answered - shown, timedelta())
        if self.problem is not None and not self._refused:
            _log.error("refusing requests: %s", self.problem)
        elif self.problem is None and self._refused:
            _log.info("serving requests again: this server's clock is %s", self._words)
        elif abs(self.skew) > _WORTH_A_LINE and not self._warned:
            _log.warning("checking the clock: it is %s; is it synchronised?", self._words)
        self._refused, self._warned = self.problem is not None, abs(self.skew) > _WORTH_A_LINE

    @property
    def _words(self) -> str:
        return (
            f"{abs(self.skew).total_seconds():.0f} s {'behind' if self.skew < timedelta() else 'ahead of'} the ledger's"
        )
