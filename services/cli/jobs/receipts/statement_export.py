"""A receipt as a SCITT transparent statement, signed by the key of whoever exports it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ledger.errors import ProofError
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import TrustedKeys
from ledger.statements.scitt import Place, check_cose_receipt, transparent_statement
from ledger.tree.checkpoint import open_checkpoint
from services.cli.jobs.receipts.receipt_export import write_new
from services.cli.jobs.receipts.receipt_proof import find
from services.cli.jobs.trust import load_trusted
from services.client import LedgerClient
from services.client.ledger.log import ReceiptDetails
from services.client.ledger.receipt_checks import entry_of
from services.client.ledger.verified import VerifiedLedger


@dataclass(frozen=True, slots=True)
class Exported:
    """`issuer` is the id of the key that signed."""

    receipt_id: str
    issuer: str


def export_statement(ledger: LedgerClient, named: str, path: Path, key: Signer, trusted_folder: Path) -> Exported:
    """Write the statement. Signs only what it has checked: the receipt, its place in the log, the verdicts.

    Raises Missing, UsageError, KolmError, LedgerError.
    """
    trusted = load_trusted(trusted_folder)
    receipt_id = find(ledger, named).receipt.receipt_id
    details = VerifiedLedger(ledger, trusted).receipt(receipt_id)
    made = _cose(ledger, details, trusted, key)
    write_new(path, made)
    return Exported(receipt_id, key.key_id)


def _cose(ledger: LedgerClient, details: ReceiptDetails, trusted: TrustedKeys, key: Signer) -> bytes:
    receipt_id, entry = details.receipt.receipt_id, entry_of(details.receipt).to_bytes()
    answer, logs = ledger.cose_receipt(receipt_id), trusted.keys("log")
    if answer.entry != entry:
        raise ProofError("the ledger shows the COSE Receipt of another entry")
    place = Place(entry, answer.proof.index, answer.proof.hashes, open_checkpoint(answer.checkpoint, logs))
    check_cose_receipt(answer.cose_receipt, place, receipt_id, logs)
    return transparent_statement(entry, receipt_id, key, [answer.cose_receipt])
