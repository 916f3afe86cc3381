"""Writes a receipt file where an answer comes in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ledger.bundle.receipt_file import ReceiptFile, Turns
from ledger.documents.sent import sent_turn
from ledger.keys.envelope import Envelope
from ledger.tree.tlog_proof import TlogProof
from services.cli.failures.exits import UsageError
from services.cli.jobs.ledger.bundle_export import proof_of
from services.cli.jobs.receipts.receipt_export import write_new
from services.cli.values.named_files import expect_room
from services.client import LedgerClient, Message, Receipt
from services.client.errors import KolmError, NotFound

_PATIENCE = 10.0  # seconds in which a receipt on its way should have arrived
_PAUSE = 0.25


def check_writable(path: Path) -> None:
    """Before anything is asked: an answer must not be lost for want of a folder. Raises UsageError."""
    if path.exists():
        raise UsageError(f"--save: {path} exists already; name another file")
    expect_room("--save", path)


def save(path: Path, receipt: Receipt, sent: str | Sequence[Message], ledger: str) -> str | None:
    """Write a receipt file, readable for its owner only, with the proof of its entry; returns why it has no proof.

    Raises Failed, or UsageError where a file is there by now.
    """
    turns: str | Turns = sent if isinstance(sent, str) else tuple(sent_turn(each.role, each.content) for each in sent)
    proof, why = _proof(receipt, ledger)
    file = ReceiptFile(Envelope.from_bytes(receipt.envelope), receipt.content, turns, receipt.text, proof)
    write_new(path, file.to_bytes())
    return why


def _proof(receipt: Receipt, ledger: str) -> tuple[TlogProof | None, str]:
    deadline = time.monotonic() + _PATIENCE
    try:
        with LedgerClient.connect(ledger) as client:
            while True:
                try:
                    return proof_of(client, client.receipt(receipt.receipt_id).receipt.index), ""
                except NotFound:
                    if time.monotonic() > deadline:
                        return None, f"the log has not taken the receipt within {_PATIENCE:.0f} s"
                time.sleep(_PAUSE)
    except KolmError as error:
        return None, f"the ledger at {ledger} does not answer: {error.message}"
