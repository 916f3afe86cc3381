"""The two lists of the ledger, page by page. Blocking: called on a worker thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from ledger.encoding.text_forms import digest_text, parse_digest, timestamp_not_before
from ledger.errors import FormatError, NotFound
from ledger.log.reader import LedgerReader, ProvenReceipts
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.store import VerdictRow
from services.ledger.messages import outcome_name, receipt_message, verdict_message
from services.ledger.visibility import check_receipt, whole_log
from services.runtime.calls import page_position, page_size, page_token
from services.runtime.credentials import Principal
from services.runtime.errors import InvalidArgument

_LARGEST_INDEX = 2**63 - 1
"""The largest SQL integer; no log reaches it, so a larger bound is replaced by it."""

_NEWEST_FIRST = "index desc"
_ORDERS = ("", "index", _NEWEST_FIRST)


def list_receipts(
    reader: LedgerReader, request: ledger_pb2.ListReceiptsRequest, caller: Principal
) -> ledger_pb2.ListReceiptsResponse:
    """One proven page by index of the receipts that the caller sees. Raises PermissionDenied, and InvalidArgument on
    `page_token`, `outcome`, `commitment` and the times.
    """
    narrow = _of_tenant(_receipt_filter(request), caller)
    if request.prove_complete:
        whole_log(caller, "prove_complete")
    if request.prove_complete and narrow.outcome is not None:
        raise InvalidArgument("outcome", "is not part of a receipt, so it cannot be combined with prove_complete")
    filters = repr((astuple(narrow), request.prove_complete)).encode()
    start, size = page_position(request.page_token, "receipts", filters), page_size(request.page_size)
    read = reader.complete_receipts if request.prove_complete else reader.proven_receipts
    page = read(narrow, after=_after(start), limit=size)
    token = page_token("receipts", filters, _next_position(page)) if page.more else ""
    return _receipts_response(page, token)


def _of_tenant(narrow: ReceiptFilter, caller: Principal) -> ReceiptFilter:
    if caller.sees_all or narrow.tenant == caller.tenant:
        return narrow
    if narrow.tenant is not None:
        whole_log(caller, "a list of another tenant")
    return replace(narrow, tenant=caller.tenant)


def _next_position(page: ProvenReceipts) -> int:
    return page.rows[-1].index + 1 if page.complete is None else page.complete.end


def _receipts_response(page: ProvenReceipts, token: str) -> ledger_pb2.ListReceiptsResponse:
    complete = None
    if page.complete is not None:
        complete = documents_pb2.CompleteRange(
            start_index=page.complete.start, end_index=page.complete.end, other_entries=page.complete.others
        )
    return ledger_pb2.ListReceiptsResponse(
        receipts=(receipt_message(row.index, row.entry, row.outcome) for row in page.rows),
        next_page_token=token,
        checkpoint=page.head.note,
        multi_proof=documents_pb2.MultiProof(tree_size=page.head.size, hashes=page.proof),
        complete_range=complete,
    )


def list_verdicts(
    reader: LedgerReader, request: ledger_pb2.ListVerdictsRequest, caller: Principal
) -> ledger_pb2.ListVerdictsResponse:
    """One page of verdicts, without those on receipts that the caller does not see. Raises PermissionDenied, and
    InvalidArgument on `page_token`, `outcome` and `order_by`.
    """
    if request.order_by not in _ORDERS:
        raise InvalidArgument("order_by", 'expected "index" (oldest first) or "index desc" (newest first)')
    falling = request.order_by == _NEWEST_FIRST
    receipt_id = request.receipt_id if request.HasField("receipt_id") else None
    if receipt_id is None:
        whole_log(caller, "a list without receipt_id")
    outcome = _outcome(request.outcome)
    filters = repr((receipt_id, outcome, falling)).encode()
    start, size = page_position(request.page_token, "verdicts", filters), page_size(request.page_size)
    seen = receipt_id is None or caller.sees_all or _is_seen(reader, receipt_id, caller)
    rows: Sequence[VerdictRow] = ()
    if seen and falling:
        before = min(start, _LARGEST_INDEX) if request.page_token else None
        rows = reader.newest_verdicts(receipt_id, before=before, limit=size + 1, outcome=outcome)
    elif seen:
        rows = reader.verdicts(receipt_id, after=_after(start), limit=size + 1, outcome=outcome)
    page = rows[:size]
    token = ""
    if len(rows) > size:
        token = page_token("verdicts", filters, page[-1].index if falling else page[-1].index + 1)
    return ledger_pb2.ListVerdictsResponse(verdicts=map(verdict_message, page), next_page_token=token)


def _is_seen(reader: LedgerReader, receipt_id: str, caller: Principal) -> bool:
    try:
        stored = reader.receipt(receipt_id)
        check_receipt(caller, stored.index, stored.entry)
    except NotFound:
        return False
    return True


def _receipt_filter(request: ledger_pb2.ListReceiptsRequest) -> ReceiptFilter:
    names = [field.name for field in fields(ReceiptFilter) if field.name != "outcome"]
    given: dict[str, Any] = {name: getattr(request, name) for name in names if request.HasField(name)}  # type: ignore[arg-type]
    for name, value in given.items():
        if name in ("start_time", "end_time"):
            given[name] = _time(value, name)
        elif name in ("min_index", "max_index"):
            given[name] = min(value, _LARGEST_INDEX)
        elif name == "commitment":
            given[name] = _commitment(value)
    return ReceiptFilter(**given, outcome=_outcome(request.outcome))


def _commitment(text: str) -> str:
    try:
        return digest_text(parse_digest(text))
    except FormatError as error:
        raise InvalidArgument("commitment", error.problem) from None


def _time(stamp: Timestamp, field: str) -> datetime:
    try:
        time = stamp.ToDatetime(UTC)
        timestamp_not_before(time)  # fails at the end of the calendar
    except (ValueError, OverflowError):
        raise InvalidArgument(field, "expected a time of the years 1 to 9999") from None
    return time


def _outcome(value: documents_pb2.Outcome.ValueType) -> str | None:
    try:
        return outcome_name(value)
    except ValueError:
        raise InvalidArgument("outcome", f"expected a value of kolm.ledger.v1.Outcome, got {value}") from None


def _after(position: int) -> int:
    """The index before a page; -1 for the first page."""
    return min(position, _LARGEST_INDEX) - 1
