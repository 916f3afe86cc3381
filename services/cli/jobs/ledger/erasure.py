"""Erases the content of a receipt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ledger.documents.erasure import Erasure
from ledger.documents.signed_document import sign_document
from ledger.encoding.timestamp import timestamp
from ledger.keys.signer import Signer
from services.cli.jobs.trust import load_trusted
from services.client import LedgerClient
from services.client.ledger.log import ReceiptEntry
from services.client.ledger.verified import VerifiedLedger


@dataclass(frozen=True, slots=True)
class Erased:
    """The entries of a receipt and of its erasure; `proven` if there were keys to check the ledger's answer with."""

    receipt_id: str
    receipt_index: int
    erasure_index: int
    proven: bool


def erase_content(ledger: LedgerClient, receipt: ReceiptEntry, key: Signer, reason: str, trusted: Path) -> Erased:
    """Returns once the content is gone. Raises KolmError, FormatError, ProofError if the answer does not hold."""
    document = Erasure(receipt.receipt_id, receipt.index, reason, timestamp(datetime.now(UTC)))
    envelope = sign_document(document, key).to_bytes()
    proving = trusted.is_dir()
    answer = VerifiedLedger(ledger, load_trusted(trusted)).erase(envelope) if proving else ledger.erase(envelope)
    return Erased(receipt.receipt_id, receipt.index, answer.index, proving)


def erase_own(ledger: LedgerClient, receipt: ReceiptEntry, trusted: Path) -> Erased:
    """The same for the receipt's tenant, by its token. Raises KolmError, LedgerError if the answer does not hold."""
    proving = trusted.is_dir()
    asked = VerifiedLedger(ledger, load_trusted(trusted)) if proving else ledger
    return Erased(receipt.receipt_id, receipt.index, asked.erase_own(receipt.receipt_id).index, proving)
