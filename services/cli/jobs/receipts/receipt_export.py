"""A receipt with its content, as a file for `kolm replay`."""

from __future__ import annotations

import os
from pathlib import Path

from ledger.bundle.receipt_file import ReceiptFile
from ledger.keys.envelope import Envelope
from services.cli.failures.exits import Failed, Missing, UsageError
from services.cli.jobs.ledger.bundle_export import proof_of
from services.cli.jobs.receipts.receipt_proof import find
from services.client import LedgerClient


def export_receipt(ledger: LedgerClient, named: str, path: Path) -> str:
    """Write the file, readable for its owner only; returns the receipt's id.

    Raises Missing without content, UsageError where a file is there, KolmError, LedgerError.
    """
    receipt = find(ledger, named).receipt
    details = ledger.receipt(receipt.receipt_id, include_content=True)
    if (content := details.content) is None:
        raise Missing(f"the ledger keeps no content of {receipt.receipt_id}", "it was erased, or never given")
    file = ReceiptFile(Envelope.from_bytes(receipt.envelope), content, proof=proof_of(ledger, receipt.index))
    write_new(path, file.to_bytes())
    return receipt.receipt_id


def write_new(path: Path, data: bytes) -> None:
    """Readable for its owner only; whole, or not there. Raises UsageError where one is there, Failed on a full disk."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise Failed(f"cannot write {path}: {error.strerror}") from None
