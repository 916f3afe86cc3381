"""The auditor: it reads new entries, announces its policy, draws, halts methods, and examines due receipts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ledger.documents.audit import Verdict
from ledger.documents.halt import Scope, scopes_of
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import read_document
from ledger.encoding.text_forms import moved, timestamp
from ledger.errors import LedgerError
from ledger.keys.envelope import Envelope
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash, verify_inclusion
from services.auditor.appender import Announcement, Appender
from services.auditor.audit_error import AuditError, BrokenLog, EngineAway
from services.auditor.backlog import Backlog, Due
from services.auditor.examination import Examiner, Finding
from services.auditor.held_folder import HeldFolder, Share
from services.client.errors import InvalidArgument, KolmError
from services.client.ledger.ledger import LedgerClient
from services.client.ledger.log import SignedCheckpoint

_log = logging.getLogger(__name__)

_KEPT_EVERY = 4096
"""New entries after which the fold is written to the folder again."""

_RESERVE_SECONDS = 900
"""The most seconds before the promised time at which a left receipt gets its verdict: a running replay may delay it."""


def origin_of(note: bytes) -> str:
    """The origin (the name) of a log, from one of its checkpoints."""
    return Checkpoint.from_text(Note.from_bytes(note).text).origin


@dataclass(frozen=True, slots=True)
class Examined:
    """A receipt with its finding, and the entries of its verdict and halt. `seconds`: how long the finding took."""

    receipt: Receipt
    receipt_index: int
    finding: Finding
    verdict_index: int
    halt_index: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Left:
    """A receipt that this auditor leaves to an auditor with its base, adapter or engine. From the time `until` on it
    gets its verdict here, so that the verdict is not late; None sets no such time.
    """

    receipt_index: int
    base_cid: str
    reason: str
    until: str | None


class Auditor:
    """One auditor on one ledger, for one thread. Several auditors divide the work by shares. If another process holds
    its folder, draws and halts for earlier deviations are left to that process.
    """

    def __init__(
        self,
        ledger: LedgerClient,
        backlog: Backlog,
        examiner: Examiner,
        appender: Appender,
        folder: HeldFolder,
        announcement: Announcement,
        share: Share = Share(),  # noqa: B008 - a frozen value
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._ledger = ledger
        self._backlog = backlog
        self._examiner = examiner
        self._appender = appender
        self._folder = folder
        self._announcement = announcement
        self._share = share
        self._reported_given_up: set[int] = set()
        self._later: set[int] = set()  # receipts whose engine is away: for the next pass
        self._left: dict[int, Left] = {}
        self._logged: set[str] = set()  # reasons for leaving receipts, each logged once
        self._clock = clock
        self._kept = backlog.position

    @property
    def remaining(self) -> tuple[int, ...]:
        """Receipts of this auditor's share that are due and have no verdict."""
        return tuple(filter(self._share.has, self._backlog.due()))

    @property
    def left(self) -> tuple[Left, ...]:
        """Due receipts that this auditor leaves to another auditor."""
        return tuple(self._left[index] for index in self.remaining if index in self._left)

    @property
    def undecided(self) -> int:
        """The number of receipts without a verdict on which no draw has decided yet."""
        return len(self._backlog.undrawn())

    @property
    def backlog(self) -> Backlog:
        """The log read so far, and the open work. For the auditor's own thread."""
        return self._backlog

    def in_other_hands(self) -> tuple[str, tuple[int, ...]]:
        """The other process that holds this auditor's folder, and the owed receipts of the share that it does not leave
        to others. Both are empty if this auditor holds the folder; if not, the log is read.
        Raises KolmError, AuditError.
        """
        if self._folder.try_hold():
            return "", ()
        self._catch_up()
        owed = set(filter(self._share.has, self._backlog.owed())) - self._folder.left_by_holder()
        return self._folder.holder or "", tuple(sorted(owed))

    def announce(self) -> None:
        """Read the log, and append the terms if they are new. Raises KolmError, AuditError."""
        self._catch_up()
        if self._folder.try_hold() and self._share.draws:
            self._announcement.announce()

    def run_pass(self) -> Iterator[Examined]:
        """Examine every due receipt except those that are `left` or given up; yields each once its verdict is logged.

        Raises KolmError, AuditError; receipts that were not examined are still due at the next pass.
        """
        self._catch_up()
        if self._folder.try_hold():
            self._send_kept()
            if self._share.draws and self._announcement.announce() | self._announcement.draw(self._catch_up):
                self._catch_up()
            self._answer_deviations()
        away: EngineAway | None = None
        self._later.clear()
        while (due := self._next()) is not None:
            try:
                yield from self._examine(due)
            except EngineAway as error:  # other receipts are still examined
                self._later.add(due.index)
                away = error
            self._catch_up()
        self._left = {each.receipt_index: each for each in self.left}
        self._folder.keep_left(list(self._left))
        if away is not None:
            raise away

    def _next(self) -> Due | None:
        """The oldest receipt of the share that is due, was not given up and is not left to another auditor."""
        given_up, now = self._folder.given_up, timestamp(self._clock())
        for index in self.remaining:
            if index in self._later or (index in self._left and not _is_over(self._left[index].until, now)):
                continue
            if index not in given_up:
                return self._backlog.receipt(index)
            if index not in self._reported_given_up:
                _log.error("giving up entry %d: every attempt to replay it failed", index)
                self._reported_given_up.add(index)
        return None

    def _examine(self, due: Due) -> Iterator[Examined]:
        """Yields after all verdicts on the receipt are in the ledger."""
        self._folder.begin(due.index)
        started, failed = time.monotonic(), False
        try:
            findings = self._examiner.examine(due.envelope, due.erased)
            seconds = time.monotonic() - started
            if not self._leaves(due, findings):
                yield from self._judge(due, findings, seconds)
        except (KolmError, AuditError, KeyboardInterrupt, GeneratorExit):  # not caused by the receipt
            raise
        except Exception:
            failed = True
            raise
        finally:
            self._folder.end(due.index, failed=failed)

    def _leaves(self, due: Due, findings: Sequence[Finding]) -> bool:
        """Note whether the receipt is left to another auditor: it is out of reach here, and its time is not up. An
        UNREPLAYABLE verdict because of a missing base would settle it.
        """
        self._left.pop(due.index, None)
        if not all(each.out_of_reach for each in findings):
            return False
        until, policy = due.due_by, self._backlog.policy
        if until is not None and policy is not None:
            until = moved(until, -min(_RESERVE_SECONDS, policy.within_seconds / 4))
        if _is_over(until, timestamp(self._clock())):
            return False
        reason = findings[0].reason or ""
        if reason not in self._logged:
            until_then = f" until {until}" if until else ""
            message = "leaving entry %d, and others like it,%s to an auditor that can replay them: %s"
            _log.info(message, due.index, until_then, reason)
            self._logged.add(reason)
        self._left[due.index] = Left(due.index, _receipt_in(due.envelope).base_cid, reason, until)
        return True

    def _catch_up(self) -> None:
        head = self._ledger.checkpoint()
        if self._backlog.position > head.tree_size:
            raise BrokenLog(f"the checkpoint has {head.tree_size} entries, fewer than seen: {self._backlog.position}")
        self._compare(head)
        if self._backlog.position == head.tree_size:  # nothing new
            return
        with self._ledger.watch(self._backlog.position) as entries:
            for entry in entries:
                self._backlog.observe(entry.entry)
                self._compare(head)
        if self._backlog.position < head.tree_size:
            raise BrokenLog(f"the checkpoint has {head.tree_size} entries, more than sent: {self._backlog.position}")

    def _compare(self, head: SignedCheckpoint) -> None:
        """Compare the fold with a checkpoint of its size, and keep it every `_KEPT_EVERY` entries. Raises BrokenLog."""
        if self._backlog.position != head.tree_size:
            return
        if self._backlog.root != head.root_hash:
            raise BrokenLog(f"the first {head.tree_size} entries have another root than the ledger's checkpoint")
        if self._backlog.position - self._kept >= _KEPT_EVERY:
            self._folder.keep_fold(self._backlog.to_document(origin_of(head.note)))
            self._kept = self._backlog.position

    def _send_kept(self) -> None:
        """Append the verdicts that were kept when an auditor ended between the first and the last one on a receipt."""
        kept, appended = self._folder.kept_verdicts(), dict[int, Envelope]()
        for data in kept:
            try:
                envelope = Envelope.from_bytes(data)
                verdict = read_document(envelope)
            except LedgerError as error:
                _log.warning("dropping a kept verdict, which is damaged: %s", error)
                continue
            try:
                appended[self._appender.append(envelope)] = envelope
            except InvalidArgument as error:
                if not isinstance(verdict, Verdict):
                    raise
                if self._accused(verdict) is None:
                    _log.warning("dropping a kept verdict, which does not belong to this log: %s", error)
                    continue
                index, logged = self._append_again(verdict, envelope, error)
                appended[index] = logged
        if kept:
            self._forget_kept(appended)

    def _append_again(self, verdict: Verdict, kept: Envelope, refusal: InvalidArgument) -> tuple[int, Envelope]:
        """The entry of a refused verdict, and its envelope: signed again if a replaced key signed it, and the log does
        not have it from before. Raises `refusal` if that has another reason.
        """
        again, data = self._appender.signed_again(kept, refusal), kept.to_bytes()
        for listed in self._ledger.verdicts(receipt_id=verdict.receipt_id):
            if listed.envelope == data:
                return listed.index, kept
        return self._appender.append(again), again

    def _forget_kept(self, appended: Mapping[int, Envelope]) -> None:
        """Delete the kept verdicts once they are proven to be in the log. Raises BrokenLog."""
        self._catch_up()
        for index, verdict in appended.items():
            if index >= self._backlog.position or self._proven(index) != verdict:
                raise BrokenLog(f"the ledger names entry {index} for a verdict that the log does not have there")
        self._folder.forget_verdicts()

    def _judge(self, due: Due, findings: Sequence[Finding], seconds: float) -> list[Examined]:
        """Append all verdicts, and halts for deviations. After its first verdict a receipt is no longer due, so all
        verdicts are kept on disk until the last one is appended.
        """
        receipt = _receipt_in(due.envelope)
        explained = [each if due.why is None else each.noting(due.why) for each in findings]
        verdicts = [self._appender.signed_verdict(receipt, due.index, finding) for finding in explained]
        if len(verdicts) > 1:
            self._folder.keep_verdicts([each.to_bytes() for each in verdicts])
        pairs = zip(explained, verdicts, strict=True)
        examined = [self._append(receipt, due, finding, verdict, seconds) for finding, verdict in pairs]
        if len(verdicts) > 1:
            self._forget_kept({each.verdict_index: verdict for each, verdict in zip(examined, verdicts, strict=True)})
        return examined

    def _append(self, receipt: Receipt, due: Due, finding: Finding, verdict: Envelope, seconds: float) -> Examined:
        """Append a verdict and, if its outcome halts, the halts."""
        verdict_index = self._appender.append(verdict)
        self._backlog.settle(due.index)
        _report(receipt, due.index, finding, verdict_index)
        halt_index = None
        if self._backlog.halts_on(finding.outcome):
            halt_index = self._halt(receipt, due.index, verdict_index, finding.reason or "")
        return Examined(receipt, due.index, finding, verdict_index, halt_index, seconds)

    def _answer_deviations(self) -> None:
        """Append the missing halts for verdicts of this share whose auditor stopped between a verdict and its halt."""
        for verdict_index, verdict in self._backlog.deviations():
            if not self._share.has(verdict.receipt_index):
                continue
            receipt = self._accused(verdict)
            if receipt is None:
                raise BrokenLog(f"the verdict in entry {verdict_index} is on another receipt than the log holds")
            self._halt(receipt, verdict.receipt_index, verdict_index, verdict.reason or "")
            self._backlog.answered(verdict_index)

    def _accused(self, verdict: Verdict) -> Receipt | None:
        """The receipt of a verdict, proven to be in the log as it was folded; None if the log has another document in
        its place. Raises BrokenLog, also if the log ends before it.
        """
        index, size = verdict.receipt_index, self._backlog.position
        if index >= size:
            raise BrokenLog(
                f"the auditor's folder keeps a verdict on entry {index}, the log has {size} entries; if the folder is "
                "of another log, delete verdicts.jsonl there"
            )
        try:
            document = read_document(self._proven(index))
        except LedgerError as error:
            raise BrokenLog(f"entry {index} cannot be read: {error}") from error
        return document if isinstance(document, Receipt) and document.receipt_id == verdict.receipt_id else None

    def _proven(self, index: int) -> Envelope:
        """The envelope of an entry below `position`, proven to be in the log as it was folded. Raises BrokenLog."""
        data, size = self._ledger.entry(index).entry, self._backlog.position
        proof = self._ledger.inclusion_proof(index, size).inclusion_proof
        try:
            verify_inclusion(leaf_hash(data), index, size, proof.hashes, self._backlog.root)
            return Entry.from_bytes(data).envelope
        except LedgerError as error:
            raise BrokenLog(f"the ledger shows another entry {index} than its checkpoint has: {error}") from error

    def _halt(self, receipt: Receipt, receipt_index: int, verdict_index: int, difference: str) -> int | None:
        """Append a halt for every method that drafted; returns the index of the first, None if nothing was left to
        halt.
        """
        block = receipt.spec_decode
        if block.method == "off":
            _log.error(
                "halting nothing: entry %d, which does not replay, was decoded with speculation off", receipt_index
            )
            return None
        self._catch_up()  # another auditor may have halted it in the meantime
        scopes = scopes_of(receipt.base_cid, block.method, block.head_cid, block.passes_by_method)
        needed = [scope for scope in scopes if self._backlog.needs_halt(scope, receipt_index)]
        reason = f"receipt {receipt.receipt_id} (entry {receipt_index}) does not replay: {difference}"[:2048]
        indexes = [self._halt_scope(scope, verdict_index, reason) for scope in needed]
        return indexes[0] if indexes else None

    def _halt_scope(self, scope: Scope, verdict_index: int, reason: str) -> int:
        index = self._appender.halt(scope, verdict_index, reason)
        self._backlog.halted(index, scope)
        _log.error("halting %s on %s, entry %d: %s", scope.method, scope.base_cid, index, reason)
        return index


def _is_over(until: str | None, now: str) -> bool:
    return until is not None and now >= until


def _receipt_in(envelope: Envelope) -> Receipt:
    """The receipt; the examination checks its signature."""
    try:
        document = read_document(envelope)
    except LedgerError as error:
        raise BrokenLog(f"an entry listed as a receipt is not one: {error}") from error
    if not isinstance(document, Receipt):
        raise BrokenLog("an entry listed as a receipt is another document")
    return document


def _report(receipt: Receipt, index: int, finding: Finding, verdict_index: int) -> None:
    level = logging.INFO if finding.passed else logging.ERROR if finding.tampered else logging.WARNING
    text = "%s: receipt %s (entry %d), verdict is entry %d%s"
    reason = "" if finding.reason is None else f": {finding.reason}"
    _log.log(level, text, finding.outcome, receipt.receipt_id, index, verdict_index, reason)
