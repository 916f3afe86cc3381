"""The newest receipts of a log that lists oldest first."""

from __future__ import annotations

from services.client import LedgerClient
from services.client.log import ReceiptEntry


def newest_receipts(
    ledger: LedgerClient,
    limit: int,
    *,
    tenant: str | None = None,
    method: str | None = None,
    request_id: str | None = None,
) -> list[ReceiptEntry]:
    """Up to `limit` matching receipts, the newest last. Looks at ever longer ends of the log until there are enough."""
    size = ledger.checkpoint().tree_size
    window = 4 * limit
    while True:
        start = max(0, size - window)
        found = list(ledger.receipts(tenant=tenant, method=method, request_id=request_id, min_index=start))
        if len(found) >= limit or start == 0:
            return found[-limit:]
        window *= 8
