"""The entries that the auditor appends: verdicts and halts, and, about its own sampling, policy and draws."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ledger.documents.audit import AuditPolicy, Draw, ReferenceThresholds
from ledger.documents.halt import Halt, Scope
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import Document, read_document, sign_document
from ledger.encoding.text_forms import timestamp
from ledger.errors import LedgerError
from ledger.keys.envelope import Envelope
from ledger.keys.signer import Signer
from services.auditor.audit_error import BrokenLog
from services.auditor.backlog import Backlog
from services.auditor.examination import Finding, verdict_of
from services.auditor.held_folder import HeldFolder
from services.client.errors import InvalidArgument
from services.client.ledger.ledger import LedgerClient

_log = logging.getLogger(__name__)


class Appender:
    """Signs documents with the auditor's key and appends them; returns the indexes of the entries. Raises KolmError."""

    def __init__(self, ledger: LedgerClient, key: Signer, clock: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._key = key
        self._clock = clock

    def signed_verdict(self, receipt: Receipt, receipt_index: int, finding: Finding) -> Envelope:
        """Sign the verdict on a receipt; `append` sends it."""
        return sign_document(verdict_of(finding, receipt, receipt_index, self._now()), self._key)

    def halt(self, scope: Scope, verdict_index: int, reason: str) -> int:
        return self._sign_and_append(Halt(scope, verdict_index, reason, self._now()))

    def policy(self, terms: Terms) -> int:
        policy = AuditPolicy(terms.rate, terms.within_seconds, self._now(), terms.reference, terms.halts_inconsistent)
        return self._sign_and_append(policy)

    def signed_draw(self, tree_size: int, root: bytes) -> Envelope:
        """Sign a draw over the first `tree_size` entries; `append` sends it."""
        return sign_document(Draw(tree_size, "sha256:" + root.hex(), self._now()), self._key)

    def signed_again(self, envelope: Envelope, refusal: InvalidArgument) -> Envelope:
        """Sign the document of a kept envelope that the ledger refuses because the auditor had another key then. Raises
        `refusal` if that is not the reason.
        """
        own = self._key.key_id in [signature.key_id for signature in envelope.signatures]
        if own or refusal.reason != "UNTRUSTED_SIGNATURE":
            raise refusal
        _log.warning("replacing the signature of an earlier key: %s", refusal)
        return sign_document(read_document(envelope), self._key)

    def append(self, envelope: Envelope) -> int:
        """Append a signed document; the same document again gets the same index."""
        return self._ledger.append(envelope.to_bytes()).index

    def _sign_and_append(self, document: Document) -> int:
        return self.append(sign_document(document, self._key))

    def _now(self) -> str:
        return timestamp(self._clock())


@dataclass(frozen=True, slots=True)
class Terms:
    """The policy to announce: the share of receipts to sample (0 to 1), the most seconds from the issue of a sampled
    receipt to its verdict, the thresholds of reference passes, if any, and whether INCONSISTENT halts.
    """

    rate: float
    within_seconds: int
    reference: ReferenceThresholds | None = None
    halts_inconsistent: bool = False


class Announcement:
    """Announces the terms once, and draws when the oldest undecided receipt has waited `draw_seconds`.

    Draws depend on time, not on traffic: the only receipt of a day is decided about as soon as one of many.
    """

    def __init__(
        self,
        backlog: Backlog,
        appender: Appender,
        folder: HeldFolder,
        terms: Terms | None,
        draw_seconds: float,
    ) -> None:
        """If `terms` is None, nothing is announced and the log's policy stays in force."""
        self._backlog = backlog
        self._appender = appender
        self._folder = folder
        self._terms = terms
        self._draw_seconds = draw_seconds
        self._oldest: int | None = None
        self._since = 0.0
        self._started = False

    def announce(self) -> bool:
        """Append the terms unless they are in force already; returns whether it appended. Raises KolmError."""
        terms, self._terms = self._terms, None
        if terms is None or not _changes(self._backlog.policy, terms):
            return False
        try:
            index = self._appender.policy(terms)
        except BaseException:
            self._terms = terms  # not announced yet
            raise
        message = "announcing the audit policy in entry %d: rate %g, verdicts within %d s"
        _log.info(message, index, terms.rate, terms.within_seconds)
        return True

    def draw(self, catch_up: Callable[[], None]) -> bool:
        """Draw if a draw is due; `catch_up` reads the log. Returns whether the log has a new draw.

        A draw is kept on disk from before it is sent until it is read from the log. A ledger that loses it gets the
        same draw again, so an operator cannot collect draws and choose one. Raises KolmError, AuditError.
        """
        if not self._is_due():
            return False
        catch_up()
        envelope = self._kept() or self._signed()
        if envelope is not None:
            index, draw = self._append(envelope), _draw_in(envelope)
            catch_up()
            if draw is None or any(one.index < draw.tree_size for one in self._backlog.undrawn()):
                raise BrokenLog(f"the ledger names entry {index} for a draw that the log does not have")
            _log.info("publishing the audit draw in entry %d", index)
        self._folder.forget_draw()
        return envelope is not None

    def _is_due(self) -> bool:
        """Whether the oldest undecided receipt has waited long enough since we first saw it.

        Receipts that wait when an auditor starts may have waited long: a draw about them is due immediately. The times
        in receipts are not used.
        """
        waiting, now = self._backlog.undrawn(), time.monotonic()
        oldest = waiting[0].index if waiting else None
        if oldest != self._oldest:
            self._oldest, self._since = oldest, now if self._started else -math.inf
        self._started = True
        return oldest is not None and now - self._since >= self._draw_seconds

    def _kept(self) -> Envelope | None:
        """The kept draw; None if there is none, or if a later draw has decided about all of its receipts.

        Raises BrokenLog if it is over entries that the log does not have: a second draw would be the operator's choice.
        """
        if (kept := self._folder.kept_draw()) is None:
            return None
        try:
            envelope = Envelope.from_bytes(kept)
        except LedgerError:
            return None
        if (draw := _draw_in(envelope)) is None:
            return None
        root = self._backlog.root_at(draw.tree_size)
        if draw.tree_size > self._backlog.position or root not in (None, draw.root_hash):
            raise BrokenLog(
                f"the auditor's folder keeps a draw over the first {draw.tree_size} entries, which this log does not "
                "have; if the folder is of another log, delete draw.json there"
            )
        return None if root is None else envelope

    def _append(self, envelope: Envelope) -> int:
        """Append a draw; one by a replaced key is signed again, over the same entries."""
        try:
            return self._appender.append(envelope)
        except InvalidArgument as error:
            again = self._appender.signed_again(envelope, error)
            self._folder.keep_draw(again.to_bytes())
            return self._appender.append(again)

    def _signed(self) -> Envelope | None:
        """A new draw over all observed entries, kept on disk; None if no receipt waits any more."""
        if not self._backlog.undrawn():
            return None
        envelope = self._appender.signed_draw(self._backlog.position, self._backlog.root)
        self._folder.keep_draw(envelope.to_bytes())
        return envelope


def _draw_in(envelope: Envelope) -> Draw | None:
    try:
        document = read_document(envelope)
    except LedgerError:
        return None
    return document if isinstance(document, Draw) else None


def _changes(policy: AuditPolicy | None, terms: Terms) -> bool:
    if policy is None:
        return terms.rate > 0.0 or terms.halts_inconsistent
    return Terms(policy.rate, policy.within_seconds, policy.reference, policy.halts_inconsistent) != terms
