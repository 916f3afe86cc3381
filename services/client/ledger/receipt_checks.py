"""A receipt as a server shows it, against the document that was signed. Pure; no proof of its place in the log."""

from __future__ import annotations

from dataclasses import replace

from ledger.documents import audit
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import open_document
from ledger.encoding.digest import digest_text
from ledger.encoding.timestamp import parse_timestamp
from ledger.errors import ProofError
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.entry import Entry
from services.client.ledger.log import ReceiptDetails, ReceiptEntry, Verdict


def entry_of(row: ReceiptEntry) -> Entry:
    """The entry of a row, from index, previous hash and envelope. Raises FormatError."""
    return Entry(row.index, digest_text(row.previous_hash), Envelope.from_bytes(row.envelope))


def check_row(row: ReceiptEntry, document: Receipt) -> None:
    """The columns of a row have to say what the signed document says; `outcome` is not part of that.

    Raises ProofError.
    """
    meant = replace(
        row,
        receipt_id=document.receipt_id,
        tenant=document.tenant,
        request_id=document.request_id,
        base_cid=document.base_cid,
        method=document.spec_decode.method,
        issued_at=parse_timestamp(document.issued_at),
        head_cid=document.spec_decode.head_cid,
        adapter_cid=document.adapter_cid,
        profile_cid=document.profile_cid,
        profile_proven=document.profile_proven,
    )
    if row != meant:
        raise ProofError(f"the row of entry {row.index} does not say what its receipt says")


def check_details(details: ReceiptDetails, document: Receipt, trusted: TrustedKeys) -> None:
    """Checks what is shown beside a receipt. Raises FormatError, SignatureError, ProofError.

    The content must be what it commits to, each verdict must be on this receipt and signed by a trusted auditor, and
    the row's outcome must be the newest one's.
    """
    if details.content is not None:
        details.content.check_against(document)
    for shown in details.verdicts:
        _check_verdict(shown, details.receipt, trusted)
    newest = details.verdicts[-1].outcome if details.verdicts else None
    if details.receipt.outcome != newest:
        raise ProofError(
            f"receipt {document.receipt_id} is shown as {details.receipt.outcome}, its newest verdict as {newest}"
        )


def _check_verdict(shown: Verdict, row: ReceiptEntry, trusted: TrustedKeys) -> None:
    document = open_document(Envelope.from_bytes(shown.envelope), trusted)
    if not isinstance(document, audit.Verdict):
        raise ProofError(f"entry {shown.index} is shown as a verdict and is none")
    said = document.receipt_id, document.receipt_index, document.outcome
    if said != (row.receipt_id, row.index, shown.outcome):
        raise ProofError(f"the verdict in entry {shown.index} is not the one that is shown for {row.receipt_id}")
