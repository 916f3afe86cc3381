"""The two lists of the ledger, page by page. Blocking: called on a worker thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from ledger.reader import LedgerReader
from ledger.store import ReceiptFilter, VerdictRow
from services.ledger.messages import outcome_name, receipt_row_message, verdict_message
from services.runtime.errors import InvalidArgument
from services.runtime.paging import page_position, page_size, page_token

_LARGEST_INDEX = 2**63 - 1
"""SQL integers end here; no log reaches it, so a larger bound means the same."""

_SCAN = 1000


def list_receipts(reader: LedgerReader, request: ledger_pb2.ListReceiptsRequest) -> ledger_pb2.ListReceiptsResponse:
    """One page by index. Raises InvalidArgument on `page_token`."""
    narrow = _receipt_filter(request)
    filters = repr(astuple(narrow)).encode()
    start, size = page_position(request.page_token, "receipts", filters), page_size(request.page_size)
    rows = reader.receipts(narrow, after=_after(start), limit=size + 1)
    page = rows[:size]
    token = page_token("receipts", filters, page[-1].index + 1) if len(rows) > size else ""
    return ledger_pb2.ListReceiptsResponse(receipts=map(receipt_row_message, page), next_page_token=token)


def list_verdicts(reader: LedgerReader, request: ledger_pb2.ListVerdictsRequest) -> ledger_pb2.ListVerdictsResponse:
    """One page by index. Raises InvalidArgument on `page_token` and `outcome`."""
    receipt_id = request.receipt_id if request.HasField("receipt_id") else None
    outcome = _outcome(request.outcome)
    filters = repr((receipt_id, outcome)).encode()
    start, size = page_position(request.page_token, "verdicts", filters), page_size(request.page_size)
    rows = _verdict_rows(reader, receipt_id, outcome, _after(start), size + 1)
    page = rows[:size]
    token = page_token("verdicts", filters, page[-1].index + 1) if len(rows) > size else ""
    return ledger_pb2.ListVerdictsResponse(verdicts=map(verdict_message, page), next_page_token=token)


def _verdict_rows(
    reader: LedgerReader, receipt_id: str | None, outcome: str | None, after: int, limit: int
) -> Sequence[VerdictRow]:
    """Up to `limit` verdicts with this outcome; the store narrows by receipt only, so the outcome is looked at here."""
    found: list[VerdictRow] = []
    while rows := reader.verdicts(receipt_id, after=after, limit=_SCAN):
        found.extend(row for row in rows if outcome in (None, row.outcome))
        if len(found) >= limit:
            break
        after = rows[-1].index
    return found[:limit]


def _receipt_filter(request: ledger_pb2.ListReceiptsRequest) -> ReceiptFilter:
    def given(name: str) -> str | None:
        return getattr(request, name) if request.HasField(name) else None  # type: ignore[arg-type]

    return ReceiptFilter(
        tenant=given("tenant"),
        method=given("method"),
        base_cid=given("base_cid"),
        request_id=given("request_id"),
        min_index=min(request.min_index, _LARGEST_INDEX) if request.HasField("min_index") else None,
        max_index=min(request.max_index, _LARGEST_INDEX) if request.HasField("max_index") else None,
    )


def _outcome(value: documents_pb2.Outcome.ValueType) -> str | None:
    try:
        return outcome_name(value)
    except ValueError:
        raise InvalidArgument("outcome", f"expected a value of kolm.ledger.v1.Outcome, got {value}") from None


def _after(position: int) -> int:
    """The index that a page comes after; -1 for the first."""
    return min(position, _LARGEST_INDEX) - 1
