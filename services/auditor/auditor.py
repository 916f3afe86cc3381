"""The auditor: read what is new, answer deviations, examine what is due."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from ledger.document import read_document
from ledger.envelope import Envelope
from ledger.errors import LedgerError
from ledger.halt import Scope
from ledger.receipt import Receipt
from ledger.verdict import DEVIATION, Verdict
from services.auditor.backlog import Backlog, Due
from services.auditor.errors import BrokenLog, ServiceAway
from services.auditor.examination import Examiner
from services.auditor.finding import Finding
from services.auditor.journal import Journal
from services.client.ledger import LedgerClient

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Examined:
    """A receipt with what was found and where that was written down."""

    receipt: Receipt
    receipt_index: int
    finding: Finding
    verdict_index: int
    halt_index: int | None


class Auditor:
    """One auditor on one ledger. Not for several threads; several auditors on one ledger only repeat each other."""

    def __init__(
        self,
        ledger: LedgerClient,
        backlog: Backlog,
        examiner: Examiner,
        journal: Journal,
        *,
        condemn_unavailable: bool = True,
    ) -> None:
        """`condemn_unavailable`: a generation service that stayed away makes a receipt UNREPLAYABLE; where False, the
        pass ends with the error and nothing is written.
        """
        self._ledger = ledger
        self._backlog = backlog
        self._examiner = examiner
        self._journal = journal
        self._condemn_unavailable = condemn_unavailable

    @property
    def undecided(self) -> int:
        """Receipts for which it does not show yet whether they are sampled."""
        return self._backlog.undecided

    def run_pass(self) -> Iterator[Examined]:
        """Everything that is due now, one by one, each with its verdict in the ledger.

        Raises KolmError, AuditError; what was not examined is still due at the next pass.
        """
        self._catch_up()
        self._answer_deviations()
        for due in self._backlog.due():
            yield self._examine(due)

    def _catch_up(self) -> None:
        head = self._ledger.checkpoint()
        with self._ledger.watch(self._backlog.position) as entries:
            for entry in entries:
                self._backlog.observe(entry.entry)
                if self._backlog.position == head.tree_size and self._backlog.root != head.root_hash:
                    raise BrokenLog(f"the first {head.tree_size} entries are not what the ledger's checkpoint is over")
        if self._backlog.position < head.tree_size:
            raise BrokenLog(f"the ledger signed {head.tree_size} entries and shows {self._backlog.position}")

    def _examine(self, due: Due) -> Examined:
        receipt = _receipt_in(due.envelope)
        finding = self._find(due.envelope)
        if due.draw is not None:
            finding = finding.noting(due.draw)
        verdict_index = self._journal.verdict(receipt, due.index, finding)
        self._backlog.settle(due.index)
        _report(receipt, due.index, finding, verdict_index)
        halt_index = None
        if finding.outcome == DEVIATION:
            halt_index = self._halt(receipt, due.index, verdict_index, finding.reason or "")
        return Examined(receipt, due.index, finding, verdict_index, halt_index)

    def _find(self, envelope: Envelope) -> Finding:
        try:
            return self._examiner.examine(envelope)
        except ServiceAway as error:
            if not self._condemn_unavailable:
                raise
            return Finding.unreplayable(f"the generation service stayed away: {error}")

    def _answer_deviations(self) -> None:
        """The halts that an auditor, stopped between a verdict and its halt, still owes."""
        for verdict_index, verdict in self._backlog.deviations():
            receipt = _receipt_in(Envelope.from_bytes(self._receipt_envelope(verdict)))
            self._halt(receipt, verdict.receipt_index, verdict_index, verdict.reason or "")
            self._backlog.answered(verdict_index)

    def _receipt_envelope(self, verdict: Verdict) -> bytes:
        return self._ledger.receipt(verdict.receipt_id).receipt.envelope

    def _halt(self, receipt: Receipt, receipt_index: int, verdict_index: int, difference: str) -> int | None:
        """The index of the halt; None where the scope has been halted since, or where there is nothing to halt."""
        if receipt.spec_decode.method == "off":
            _log.error("entry %d, decoded with speculation off, does not replay: no method to halt", receipt_index)
            return None
        scope = Scope(receipt.base_cid, receipt.spec_decode.method, receipt.spec_decode.head_cid)
        if not self._backlog.needs_halt(scope, receipt_index):
            return None
        reason = f"receipt {receipt.receipt_id} (entry {receipt_index}) does not replay: {difference}"[:2048]
        index = self._journal.halt(scope, verdict_index, reason)
        self._backlog.halted(index, scope)
        _log.error("halted %s on %s, entry %d: %s", scope.method, scope.base_cid, index, reason)
        return index


def _receipt_in(envelope: Envelope) -> Receipt:
    """The receipt, signed by whomever: the examination says whether that matters."""
    try:
        document = read_document(envelope)
    except LedgerError as error:
        raise BrokenLog(f"the ledger holds a receipt that is none: {error}") from error
    if not isinstance(document, Receipt):
        raise BrokenLog("the ledger holds something else in the place of a receipt")
    return document


def _report(receipt: Receipt, index: int, finding: Finding, verdict_index: int) -> None:
    level = logging.INFO if finding.passed else logging.ERROR if finding.tampered else logging.WARNING
    text = "%s: receipt %s (entry %d), verdict is entry %d%s"
    reason = "" if finding.reason is None else f": {finding.reason}"
    _log.log(level, text, finding.outcome, receipt.receipt_id, index, verdict_index, reason)
