"""Records as rows, and rows as values."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Table

from ledger.content import Content
from ledger.document import kind_of
from ledger.errors import ChainError, StoreError
from ledger.receipt import Receipt
from ledger.sql.schema import contents, receipts, verdicts
from ledger.store import Record
from ledger.verdict import Verdict


def entry_bytes(index: int, value: object) -> bytes:
    """The bytes of an entry. ChainError, which names it, where a flipped bit turned the blob into something else."""
    if not isinstance(value, bytes):
        raise ChainError(index, f"is damaged: the database returns {type(value).__name__}, not bytes")
    return value


def blob(value: object, what: str) -> bytes:
    """The bytes of another column. Raises StoreError where they are none."""
    if not isinstance(value, bytes):
        raise StoreError(f"{what} is damaged: the database returns {type(value).__name__}, not bytes")
    return value


def leaf_row(record: Record) -> dict[str, Any]:
    return {
        "index": record.index,
        "kind": kind_of(record.document),
        "entry": record.entry,
        "envelope_digest": record.envelope_digest,
    }


def index_rows(records: Sequence[Record]) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
    """The index tables that some records add to, and the rows that they add."""
    documents = [(record.index, record.document) for record in records]
    for table, rows in (
        (receipts, [_receipt_row(index, document) for index, document in documents if isinstance(document, Receipt)]),
        (verdicts, [_verdict_row(index, document) for index, document in documents if isinstance(document, Verdict)]),
        (contents, [_content_row(record.index, record.content) for record in records if record.content is not None]),
    ):
        if rows:
            yield table, rows


def _receipt_row(index: int, receipt: Receipt) -> dict[str, Any]:
    return {
        "index": index,
        "receipt_id": receipt.receipt_id,
        "tenant": receipt.tenant,
        "request_id": receipt.request_id,
        "base_cid": receipt.base_cid,
        "method": receipt.spec_decode.method,
        "issued_at": receipt.issued_at,
    }


def _verdict_row(index: int, verdict: Verdict) -> dict[str, Any]:
    return {
        "index": index,
        "receipt_id": verdict.receipt_id,
        "receipt_index": verdict.receipt_index,
        "outcome": verdict.outcome,
    }


def _content_row(index: int, content: Content) -> dict[str, Any]:
    return {
        "receipt_index": index,
        "prompt_salt": content.prompt_salt,
        "prompt_token_ids": _pack(content.prompt_token_ids),
        "output_salt": content.output_salt,
        "output_token_ids": _pack(content.output_token_ids),
    }


def content_of(row: Any) -> Content:
    return Content(
        prompt_salt=row.prompt_salt,
        prompt_token_ids=_unpack(row.prompt_token_ids),
        output_salt=row.output_salt,
        output_token_ids=_unpack(row.output_token_ids),
    )


def _pack(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _unpack(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])
