"""What the auditor writes: signed verdicts and halts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ledger.document import sign_document
from ledger.halt import Halt, Scope
from ledger.keys import SigningKey
from ledger.receipt import Receipt
from ledger.timestamp import timestamp
from services.auditor.finding import Finding
from services.client.ledger import LedgerClient


class Journal:
    """Signs with the auditor's key and appends. Each method returns the index of the new entry; raises KolmError."""

    def __init__(self, ledger: LedgerClient, key: SigningKey, clock: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._key = key
        self._clock = clock

    def verdict(self, receipt: Receipt, receipt_index: int, finding: Finding) -> int:
        document = finding.verdict(receipt, receipt_index, timestamp(self._clock()))
        return self._ledger.append(sign_document(document, self._key).to_bytes()).index

    def halt(self, scope: Scope, verdict_index: int, reason: str) -> int:
        document = Halt(scope, verdict_index, reason, timestamp(self._clock()))
        return self._ledger.append(sign_document(document, self._key).to_bytes()).index
