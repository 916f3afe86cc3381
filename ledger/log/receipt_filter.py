"""The filter of a list of receipts."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.documents.receipt import Receipt


@dataclass(frozen=True, slots=True)
class ReceiptFilter:
    """A receipt is listed where all fields match; a field that is None matches every receipt.

    Indexes are inclusive. Times are document text (`ledger.encoding.timestamp`) and compared with the receipt's
    own `issued_at`: from `issued_from` on, and earlier than `issued_before`. `outcome` is that of the latest
    verdict on the receipt, `commitment` the one to its prompt or to its output.
    """

    tenant: str | None = None
    method: str | None = None
    base_cid: str | None = None
    head_cid: str | None = None
    adapter_cid: str | None = None
    profile_cid: str | None = None
    request_id: str | None = None
    outcome: str | None = None
    issued_from: str | None = None
    issued_before: str | None = None
    min_index: int | None = None
    max_index: int | None = None
    commitment: str | None = None

    def admits(self, index: int, receipt: Receipt) -> bool:
        """Whether the receipt at `index` matches, by its own fields (`listing.Criteria`); `outcome` is none of them."""
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
            and (self.issued_from is None or receipt.issued_at >= self.issued_from)
            and (self.issued_before is None or receipt.issued_at < self.issued_before)
            and (self.min_index is None or index >= self.min_index)
            and (self.max_index is None or index <= self.max_index)
        )
