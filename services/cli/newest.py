"""The newest receipts of a log that lists oldest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from services.client.log import ReceiptEntry, ReceiptQuery

List = Callable[[ReceiptQuery], Iterable[ReceiptEntry]]


def newest_receipts(list_: List, query: ReceiptQuery, limit: int, size: int) -> list[ReceiptEntry]:
    """Up to `limit` matches among the first `size` entries, the newest last.

    Looks at ever longer ends of the log until there are enough: with a list that proves itself complete, what comes
    out is proven to be the newest.
    """
    lowest = query.min_index or 0
    end = size if query.max_index is None else min(size, query.max_index + 1)
    window = 4 * limit
    while True:
        start = max(lowest, end - window)
        found = list(list_(replace(query, min_index=start, max_index=max(end - 1, 0))))
        if len(found) >= limit or start == lowest:
            return found[-limit:]
        window *= 8
