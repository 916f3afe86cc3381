"""The entries that the auditor appends: signed verdicts, halts, policies and draws."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ledger.documents.audit_policy import AuditPolicy
from ledger.documents.draw import Draw
from ledger.documents.halt import Halt, Scope
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, sign_document
from ledger.encoding.timestamp import timestamp
from ledger.keys.envelope import Envelope
from ledger.keys.signer import Signer
from services.auditor.examination import Finding
from services.client.ledger.ledger import LedgerClient


class Journal:
    """Signs with the auditor's key and appends; indexes are those of the new entries. Raises KolmError."""

    def __init__(self, ledger: LedgerClient, key: Signer, clock: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._key = key
        self._clock = clock

    def verdict(self, receipt: Receipt, receipt_index: int, finding: Finding) -> int:
        return self._sign_and_append(finding.verdict(receipt, receipt_index, self._now()))

    def halt(self, scope: Scope, verdict_index: int, reason: str) -> int:
        return self._sign_and_append(Halt(scope, verdict_index, reason, self._now()))

    def policy(self, rate: float, within_seconds: int) -> int:
        return self._sign_and_append(AuditPolicy(rate, within_seconds, self._now()))

    def signed_draw(self, tree_size: int, root: bytes) -> Envelope:
        """A draw over the first `tree_size` entries, not appended yet."""
        return sign_document(Draw(tree_size, "sha256:" + root.hex(), self._now()), self._key)

    def append(self, envelope: Envelope) -> int:
        """Append what was signed before; the same again gets the same index."""
        return self._ledger.append(envelope.to_bytes()).index

    def _sign_and_append(self, document: Document) -> int:
        return self.append(sign_document(document, self._key))

    def _now(self) -> str:
        return timestamp(self._clock())
