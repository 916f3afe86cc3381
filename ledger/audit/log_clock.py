"""The log's own time, which replaces dates that were in the future when they were read.

Deadlines, halts and resumes are counted from the times in documents. A future time would delay an owed replay, so it
does not count: the latest earlier time in the log replaces it. That time is no later than the append of the document,
if the other clocks were right, and the next entries advance the log's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from ledger.documents.dates import MOST_SKEW_SECONDS, ahead_of, date_of
from ledger.documents.signed_document import Document
from ledger.encoding.text_forms import moved, timestamp

_SHOWN = 5
"""The most entries that are named; a log whose own clock was ahead may have thousands."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of an entry that counts. `ahead`: its document names a later time, which does not count."""

    time: str
    ahead: bool = False

    @classmethod
    def of(cls, document: Document | None) -> Moment:
        """The document's own time, without a clock to compare it with."""
        return cls("" if document is None else date_of(document))


@dataclass(frozen=True, slots=True)
class DatedAhead:
    """The entries whose time was in the future when they were read: `first` has some of them, `newest` is the last one,
    `latest` the latest of their times.
    """

    count: int = 0
    first: tuple[int, ...] = ()
    newest: int = -1
    latest: str = ""

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        named, more = ", ".join(map(str, self.first)), self.count - len(self.first)
        who = f"entry {named} names a time" if self.count == 1 else f"entries {named} name times"
        others = f" (and {more} more)" if more else ""
        return f"{who} to come{others}, up to {self.latest}: a clock was ahead. The log's own time is counted instead"

    def after(self, index: int, time: str) -> DatedAhead:
        first = self.first if len(self.first) == _SHOWN else (*self.first, index)
        return DatedAhead(self.count + 1, first, index, max(self.latest, time))


@dataclass(slots=True)
class LogClock:
    """The clock of one log, read in the order of its entries. Nothing is ahead while `not_after` is None."""

    not_after: str | None = None
    latest: str = ""
    """The latest time so far that counts."""
    ahead: DatedAhead = DatedAhead()

    def now_is(self, now: datetime | None) -> None:
        """Compare later entries with `not_after`, a time at which all of them existed."""
        self.not_after = None if now is None else moved(timestamp(now), MOST_SKEW_SECONDS)

    def read(self, index: int, document: Document) -> Moment:
        """The time of the next entry."""
        time, bound = date_of(document), self.not_after
        if bound is not None and (found := ahead_of(document, bound)) is not None:
            self.ahead = self.ahead.after(index, found[1])
            if time > bound:
                return Moment(self.latest or moved(bound, -MOST_SKEW_SECONDS), ahead=True)
        self.latest = max(self.latest, time)
        return Moment(time)

    def to_document(self) -> dict[str, Any]:
        """The clock as JSON, to continue from."""
        return {"latest": self.latest, "ahead": asdict(self.ahead)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> LogClock:
        """Read the output of `to_document`, which the caller has kept."""
        ahead = document["ahead"]
        return cls(None, document["latest"], DatedAhead(**ahead | {"first": tuple(ahead["first"])}))
