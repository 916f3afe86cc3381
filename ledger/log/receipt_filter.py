"""The filter of a list of receipts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ledger.encoding.text_forms import timestamp_not_before

if TYPE_CHECKING:
    from ledger.documents.receipt import Receipt


@dataclass(frozen=True, slots=True)
class ReceiptFilter:
    """A filter of receipts: all fields must match, and a field that is None matches every receipt.

    Indexes are inclusive. Times are timezone-aware and compared with the receipt's own `issued_at`: from `start_time`
    on, and earlier than `end_time`. `outcome` is the outcome of the latest verdict on the receipt (one of
    `audit.OUTCOMES`), `commitment` a commitment to its prompt or its output, `sha256:<hex>`.
    """

    tenant: str | None = None
    method: str | None = None
    base_cid: str | None = None
    head_cid: str | None = None
    adapter_cid: str | None = None
    profile_cid: str | None = None
    request_id: str | None = None
    outcome: str | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    min_index: int | None = None
    max_index: int | None = None
    commitment: str | None = None

    @property
    def issued_from(self) -> str | None:
        """`start_time` in the form of documents."""
        return None if self.start_time is None else timestamp_not_before(self.start_time)

    @property
    def issued_before(self) -> str | None:
        return None if self.end_time is None else timestamp_not_before(self.end_time)

    def admits(self, index: int, receipt: Receipt) -> bool:
        """Whether the receipt at `index` matches, by its own fields (`listing.Criteria`); without `outcome`."""
        wanted_and_found = (
            (self.tenant, receipt.tenant),
            (self.method, receipt.spec_decode.method),
            (self.base_cid, receipt.base_cid),
            (self.head_cid, receipt.spec_decode.head_cid),
            (self.adapter_cid, receipt.adapter_cid),
            (self.profile_cid, receipt.profile_cid),
            (self.request_id, receipt.request_id),
        )
        return (
            all(wanted in (None, found) for wanted, found in wanted_and_found)
            and self.commitment in (None, receipt.prompt.commitment, receipt.output.commitment)
            and ((start := self.issued_from) is None or receipt.issued_at >= start)
            and ((end := self.issued_before) is None or receipt.issued_at < end)
            and (self.min_index is None or index >= self.min_index)
            and (self.max_index is None or index <= self.max_index)
        )
