"""The index rows that follow from the bytes of an entry. Pure: stores write them, fsck compares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ledger.documents.audit import Verdict
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, kind_of
from ledger.encoding.text_forms import parse_digest

Row = Mapping[str, Any]


def leaf_row(index: int, entry: bytes, envelope_digest: bytes, document: Document) -> dict[str, Any]:
    """The row of table `leaves`."""
    return {"index": index, "kind": kind_of(document), "entry": entry, "envelope_digest": envelope_digest}


def index_rows(index: int, document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    """Table and row of everything beside the leaf that can be derived again from its document."""
    if isinstance(document, Receipt):
        yield "receipts", _receipt_row(index, document)
    if isinstance(document, Verdict):
        yield "verdicts", _verdict_row(index, document)


def indexable(text: str) -> str:
    """Text as an index column holds it: PostgreSQL's text has no U+0000, and one odd name must not fail a batch."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _receipt_row(index: int, receipt: Receipt) -> dict[str, Any]:
    return {
        "index": index,
        "receipt_id": receipt.receipt_id,
        "tenant": indexable(receipt.tenant),
        "request_id": indexable(receipt.request_id),
        "base_cid": receipt.base_cid,
        "head_cid": receipt.spec_decode.head_cid,
        "adapter_cid": receipt.adapter_cid,
        "profile_cid": receipt.profile_cid,
        "method": receipt.spec_decode.method,
        "issued_at": receipt.issued_at,
        "prompt_commitment": parse_digest(receipt.prompt.commitment),
        "output_commitment": parse_digest(receipt.output.commitment),
    }


def _verdict_row(index: int, verdict: Verdict) -> dict[str, Any]:
    return {
        "index": index,
        "receipt_id": verdict.receipt_id,
        "receipt_index": verdict.receipt_index,
        "outcome": verdict.outcome,
    }
