"""Searches for receipts: as the ledger answers, or proven."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from services.client import LedgerClient
from services.client.ledger.log import ReceiptEntry, ReceiptQuery

List = Callable[[ReceiptQuery], Iterable[ReceiptEntry]]


@dataclass(frozen=True, slots=True)
class Found:
    """The receipts, the newest last; `proven_in` is the size of the tree that all of them are proven to be in."""

    receipts: list[ReceiptEntry]
    proven_in: int | None


def search(ledger: LedgerClient, query: ReceiptQuery, limit: int) -> Found:
    """The ledger's answer, unproven."""

    def believed(narrowed: ReceiptQuery) -> Iterator[ReceiptEntry]:
        return (receipt for page in ledger.receipt_pages(narrowed) for receipt in page.receipts)

    return Found(newest_receipts(believed, query, limit, ledger.checkpoint().tree_size), None)


def proven_search(
    ledger: LedgerClient, query: ReceiptQuery, limit: int, trusted: Path, remember: Path | None, *, complete: bool
) -> Found:
    """The part that the ledger can prove. Raises UsageError if there are no keys to check with, LedgerError."""
    from services.cli.jobs.trust import load_trusted
    from services.client.ledger.remembered import RememberedCheckpoint
    from services.client.ledger.verified import VerifiedLedger

    proving = VerifiedLedger(ledger, load_trusted(trusted), RememberedCheckpoint(remember))
    size = proving.head().size
    return Found(newest_receipts(partial(proving.receipts, complete=complete), query, limit, size), proving.head().size)


def newest_receipts(list_: List, query: ReceiptQuery, limit: int, size: int) -> list[ReceiptEntry]:
    """Up to `limit` matches among the first `size` entries, the newest last.

    Looks at ever longer ends of the log until there are enough. If `list_` proves that it left nothing out, the result
    is proven to be the newest.
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
