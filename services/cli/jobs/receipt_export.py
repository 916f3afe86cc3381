"""A receipt with its content, as a file for `kolm replay`."""

from __future__ import annotations

import os
from pathlib import Path

from ledger.bundle.lines import ContentLine
from ledger.bundle.replay_file import ReplayFile
from ledger.documents.content import Content
from ledger.keys.envelope import Envelope
from services.cli.exits import Missing, UsageError
from services.cli.jobs.receipt_proof import find
from services.client import LedgerClient


def export_receipt(ledger: LedgerClient, named: str, path: Path) -> str:
    """Write the file, readable for its owner only; returns the receipt's id.

    Raises Missing without content, UsageError where a file is there, KolmError, LedgerError.
    """
    receipt = find(ledger, named).receipt
    details = ledger.receipt(receipt.receipt_id, include_content=True)
    if (kept := details.content) is None:
        raise Missing(f"the ledger keeps no content of {receipt.receipt_id}", "it was erased, or never given")
    content = Content(kept.prompt_salt, kept.prompt_token_ids, kept.output_salt, kept.output_token_ids)
    file = ReplayFile(Envelope.from_bytes(receipt.envelope), ContentLine(receipt.index, content))
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already") from error
    with os.fdopen(handle, "wb") as stream:
        stream.write(file.to_bytes())
    return receipt.receipt_id
