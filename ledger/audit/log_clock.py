"""The log's own time, for documents that name a time of which a verifier knows that it was still to come.

Deadlines, halts and resumes are counted from the times that documents name. A time ahead would put off a replay that is
owed, so it does not count: in its place stands the latest time that the log had named before. That one is no later than
the document was appended, if the other clocks were right, and the next entries bring the log's time on.
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
"""Entries that are named; a log whose own clock was ahead may have thousands."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of an entry as it counts. `ahead`: its document names a later one, which does not."""

    time: str
    ahead: bool = False

    @classmethod
    def of(cls, document: Document | None) -> Moment:
        """The time that the document names, without a clock to hold it against."""
        return cls("" if document is None else date_of(document))


@dataclass(frozen=True, slots=True)
class DatedAhead:
    """The entries with a time that was still to come when they were read: `first` are some of them, `newest` is the
    last one, `latest` the latest time that one names.
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
    """The latest time that was named so far and counts."""
    ahead: DatedAhead = DatedAhead()

    def now_is(self, now: datetime | None) -> None:
        """Hold what is read from here on against a moment at which all of it was there."""
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
        """JSON, to go on from."""
        return {"latest": self.latest, "ahead": asdict(self.ahead)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> LogClock:
        """Reads the output of `to_document`: the caller's own."""
        ahead = document["ahead"]
        return cls(None, document["latest"], DatedAhead(**ahead | {"first": tuple(ahead["first"])}))
