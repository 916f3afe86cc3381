"""The receipts of an answer, and, for who asks, each as a file that `kolm replay` reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ledger.bundle.receipt_file import ReceiptFile
from ledger.keys.envelope import Envelope
from services.client import Finished, Receipt, Request
from services.client.generation.completion import Choice


def receipts_json(choices: Sequence[Choice | Finished], asked: Request, *, files: bool) -> list[dict[str, Any]]:
    """One for each choice. `files` adds `file`, a receipt file without a proof: prompt, output and salts."""
    return [
        {
            "index": each.index,
            "receipt_id": each.receipt.receipt_id,
            "ledger_index": each.receipt.ledger_index,
            "pending": each.receipt.pending,
            **({"file": _file(each.receipt, asked)} if files else {}),
        }
        for each in choices
        if each.receipt is not None
    ]


def _file(receipt: Receipt, asked: Request) -> str:
    sent = tuple(asked.sent) if isinstance(asked.sent, list) else asked.sent
    return ReceiptFile(Envelope.from_bytes(receipt.envelope), receipt.content, sent, receipt.text).to_bytes().decode()
