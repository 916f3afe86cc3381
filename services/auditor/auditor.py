"""The auditor: read new entries, keep the promise, answer deviations, examine receipts that are due."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ledger.documents.halt import Scope, scopes_of
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.documents.verdict import DEVIATION, Verdict
from ledger.errors import LedgerError
from ledger.keys.envelope import Envelope
from services.auditor.audit_error import AuditError, BrokenLog, ScheduleError
from services.auditor.backlog import Backlog, Due
from services.auditor.examination import Examiner, Finding
from services.auditor.journal import Announcement, Journal
from services.auditor.schedule import DEAD, LEASED, Job, Lease, Schedule
from services.client.errors import KolmError
from services.client.ledger.ledger import LedgerClient
from services.runtime.process import Outage

_log = logging.getLogger(__name__)


class Heartbeat:
    """Renews a lease every `seconds` from a thread of its own, for as long as the block runs.

    with Heartbeat(schedule, lease, 20.0):
        finding = examine(…)
    """

    def __init__(self, schedule: Schedule, lease: Lease, seconds: float) -> None:
        self._schedule = schedule
        self._lease = lease
        self._seconds = seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        outage = Outage(_log, f"renew the lease on entry {self._lease.receipt_index}", ScheduleError)
        while not self._done.wait(self._seconds):
            with outage:
                if not self._schedule.renew(self._lease):
                    return  # its new holder examines it; we ask once more before anything is written


_FIRST = 64
"""Receipts among which to look for a free one first, before looking among all."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A receipt with its finding, and the entries of its verdict and halt. `seconds`: how long the finding took."""

    receipt: Receipt
    receipt_index: int
    finding: Finding
    verdict_index: int
    halt_index: int | None
    seconds: float


class Auditor:
    """One auditor on one ledger. Not for several threads; auditors that share a schedule share the work."""

    def __init__(
        self,
        ledger: LedgerClient,
        backlog: Backlog,
        examiner: Examiner,
        journal: Journal,
        schedule: Schedule,
        promise: Announcement,
        *,
        heartbeat_seconds: float = 20.0,
    ) -> None:
        self._ledger = ledger
        self._backlog = backlog
        self._examiner = examiner
        self._journal = journal
        self._schedule = schedule
        self._promise = promise
        self._heartbeat_seconds = heartbeat_seconds
        self._given_up: set[int] = set()

    @property
    def remaining(self) -> tuple[int, ...]:
        """Receipts that are due and have no verdict: given up, or in another auditor's hands."""
        return self._backlog.due()

    def in_other_hands(self) -> dict[int, str]:
        """What is due, was not given up and does not pause after a failure, each with the auditor that has it; an
        empty name where that one has ended since.
        """
        jobs = {job.receipt_index: job for job in self._schedule.jobs()}
        theirs = ((index, jobs.get(index)) for index in self.remaining)
        return {
            index: "" if job is None else job.label
            for index, job in theirs
            if job is None or job.state == LEASED or not job.error
        }

    @property
    def undecided(self) -> int:
        """Receipts without a verdict that no draw has decided about yet."""
        return len(self._backlog.undrawn())

    @property
    def backlog(self) -> Backlog:
        """The log as far as it was read, and the work that is left. For its own thread."""
        return self._backlog

    def run_pass(self) -> Iterator[Examined]:
        """Everything that is due now and that no other auditor is at, one by one, each with its verdict in the ledger.

        Raises KolmError, AuditError; receipts that were not examined are still due at the next pass.
        """
        self._catch_up()
        if self._promise.announce() | self._promise.draw(self._catch_up):
            self._catch_up()
        jobs = self._schedule.jobs()
        self._answer_deviations({job.receipt_index for job in jobs if job.state == LEASED})
        self._tidy(jobs)
        while (leased := self._lease()) is not None:
            due, lease = leased
            if (examined := self._examine_leased(due, lease)) is not None:
                yield examined

    def _lease(self) -> tuple[Due, Lease] | None:
        """The next receipt that is ours to examine, as the log stands now."""
        while True:
            lease = self._schedule.lease(self._backlog.due(_FIRST)) or self._schedule.lease(self._backlog.due())
            if lease is None:
                if self._backlog.due(1):  # other auditors may have finished theirs by now
                    self._catch_up()
                return None
            # Its holder before may have appended the verdict, and died before it could finish the lease.
            self._catch_up()
            if (due := self._backlog.receipt(lease.receipt_index)) is not None:
                return due, lease
            self._schedule.finish(lease)

    def _examine_leased(self, due: Due, lease: Lease) -> Examined | None:
        """None where the lease was lost meanwhile: the receipt is another auditor's now, and so is the verdict."""
        try:
            started = time.monotonic()
            with Heartbeat(self._schedule, lease, self._heartbeat_seconds):
                finding = self._examiner.examine(due.envelope, due.erased)
            seconds = time.monotonic() - started
            if not self._schedule.renew(lease):
                _log.warning("the lease on entry %d was lost while it was examined", due.index)
                return None
            examined = self._judge(due, finding, seconds)
        except (KolmError, AuditError, KeyboardInterrupt):  # this says nothing about the receipt
            self._schedule.give_back(lease)
            raise
        except Exception as error:
            self._schedule.put_back(lease, f"{type(error).__name__}: {error}")
            raise
        self._schedule.finish(lease)
        return examined

    def _tidy(self, jobs: Sequence[Job]) -> None:
        """Take receipts that are not due off the schedule, and log those that were given up."""
        due = set(self._backlog.due())
        self._schedule.forget(job.receipt_index for job in jobs if job.receipt_index not in due)
        for job in jobs:
            if job.state == DEAD and job.receipt_index in due - self._given_up:
                _log.error(
                    "entry %d stays unexamined after %d attempts: %s", job.receipt_index, job.attempts, job.error
                )
                self._given_up.add(job.receipt_index)

    def _catch_up(self) -> None:
        head = self._ledger.checkpoint()
        with self._ledger.watch(self._backlog.position) as entries:
            for entry in entries:
                self._backlog.observe(entry.entry)
                if self._backlog.position == head.tree_size and self._backlog.root != head.root_hash:
                    raise BrokenLog(f"the first {head.tree_size} entries are not what the ledger's checkpoint is over")
        if self._backlog.position < head.tree_size:
            raise BrokenLog(f"the ledger signed {head.tree_size} entries and shows {self._backlog.position}")

    def _judge(self, due: Due, finding: Finding, seconds: float) -> Examined:
        """Append the verdict, and a halt where it is a deviation."""
        receipt = _receipt_in(due.envelope)
        if due.why is not None:
            finding = finding.noting(due.why)
        verdict_index = self._journal.verdict(receipt, due.index, finding)
        self._backlog.settle(due.index)
        _report(receipt, due.index, finding, verdict_index)
        halt_index = None
        if finding.outcome == DEVIATION:
            halt_index = self._halt(receipt, due.index, verdict_index, finding.reason or "")
        return Examined(receipt, due.index, finding, verdict_index, halt_index, seconds)

    def _answer_deviations(self, in_hand: Set[int]) -> None:
        """The halts that an auditor, stopped between a verdict and its halt, still owes.

        An auditor still holds the receipts `in_hand` and is about to halt by itself.
        """
        for verdict_index, verdict in self._backlog.deviations():
            if verdict.receipt_index in in_hand:
                continue
            receipt = _receipt_in(Envelope.from_bytes(self._receipt_envelope(verdict)))
            self._halt(receipt, verdict.receipt_index, verdict_index, verdict.reason or "")
            self._backlog.answered(verdict_index)

    def _receipt_envelope(self, verdict: Verdict) -> bytes:
        return self._ledger.receipt(verdict.receipt_id).receipt.envelope

    def _halt(self, receipt: Receipt, receipt_index: int, verdict_index: int, difference: str) -> int | None:
        """A halt for every method that drafted; the index of the first one. None where all have been halted since, or
        where there is nothing to halt.
        """
        block = receipt.spec_decode
        if block.method == "off":
            _log.error("entry %d, decoded with speculation off, does not replay: no method to halt", receipt_index)
            return None
        self._catch_up()  # another auditor may have halted it in the meantime
        scopes = scopes_of(receipt.base_cid, block.method, block.head_cid, block.passes_by_method)
        needed = [scope for scope in scopes if self._backlog.needs_halt(scope, receipt_index)]
        reason = f"receipt {receipt.receipt_id} (entry {receipt_index}) does not replay: {difference}"[:2048]
        indexes = [self._halt_scope(scope, verdict_index, reason) for scope in needed]
        return indexes[0] if indexes else None

    def _halt_scope(self, scope: Scope, verdict_index: int, reason: str) -> int:
        index = self._journal.halt(scope, verdict_index, reason)
        self._backlog.halted(index, scope)
        _log.error("halted %s on %s, entry %d: %s", scope.method, scope.base_cid, index, reason)
        return index


def _receipt_in(envelope: Envelope) -> Receipt:
    """The receipt; the examination checks its signature."""
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
