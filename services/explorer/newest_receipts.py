"""The newest matches of a log that lists oldest first, a page at a time, in few and bounded calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice

from services.client.ledger.log import ReceiptEntry, ReceiptQuery

MOST_ROWS = 1000
"""Most rows of one window; with more, a shorter window is read first."""

_GROWTH = 8

List = Callable[[ReceiptQuery], Iterable[ReceiptEntry]]


@dataclass(frozen=True, slots=True)
class Newest:
    """Receipts, the newest first. `older` says whether entries below `reached` have not been looked at."""

    receipts: tuple[ReceiptEntry, ...]
    reached: int
    older: bool


def newest_receipts(list_: List, query: ReceiptQuery, end: int, limit: int) -> Newest:
    """Up to `limit` matches below entry `end`. Looks at windows, downwards, that grow while they hold too little."""
    lowest = query.min_index or 0
    end = end if query.max_index is None else min(end, query.max_index + 1)
    found: list[ReceiptEntry] = []
    window = 2 * limit
    while end > lowest and len(found) < limit:
        start = max(lowest, end - window)
        rows = list(islice(list_(replace(query, min_index=start, max_index=end - 1)), MOST_ROWS + 1))
        if len(rows) > MOST_ROWS and window > MOST_ROWS:
            window = max(window // _GROWTH, limit)
            continue
        found += reversed(rows)
        end, window = start, window * _GROWTH
    kept = tuple(found[:limit])
    reached = kept[-1].index if len(found) >= limit else end
    return Newest(kept, reached, older=reached > lowest)
