"""What an auditor has still to do, folded from the entries of the log and from nothing else."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ledger.digest import ZERO_DIGEST
from ledger.document import Document, read_document
from ledger.entry import Entry, entry_hash
from ledger.envelope import Envelope
from ledger.errors import ChainError, LedgerError, SignatureError
from ledger.halt import Halt, Scope
from ledger.merkle import Frontier, leaf_hash
from ledger.receipt import Receipt
from ledger.verdict import DEVIATION, Verdict
from services.auditor.errors import BrokenLog
from services.auditor.sampling import deciding_tree_size, is_sampled, needs_draw
from services.auditor.trust import Trust

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Due:
    """A sampled receipt without a verdict. `draw` says how it was chosen; None where all are."""

    index: int
    receipt_id: str
    envelope: Envelope
    draw: str | None


class Backlog:
    """Entries in, in order from 0; out come the receipts to examine and the deviations that no halt has answered yet.

    Folding the same log again gives the same backlog, so an auditor keeps nothing else and may be killed at any point.
    Memory grows with what is still to be done, not with the log.
    """

    def __init__(self, trust: Trust, rate: float) -> None:
        """Raises ValueError unless `rate` is from 0 to 1."""
        self._draws = needs_draw(rate)
        self._trust = trust
        self._rate = rate
        self._frontier = Frontier()
        self._previous = ZERO_DIGEST
        self._undecided: Due | None = None
        self._due: dict[int, Due] = {}
        self._deviations: dict[int, Verdict] = {}
        self._halts: list[tuple[int, Scope]] = []

    @property
    def position(self) -> int:
        """The index of the entry to observe next."""
        return self._frontier.size

    @property
    def root(self) -> bytes:
        """The root over everything observed, for comparison with a signed checkpoint."""
        return self._frontier.root()

    @property
    def undecided(self) -> int:
        """Receipts (at most one) that wait for a later entry before it shows whether they are sampled."""
        return 0 if self._undecided is None else 1

    def due(self) -> tuple[Due, ...]:
        """Oldest first."""
        return tuple(self._due.values())

    def deviations(self) -> tuple[tuple[int, Verdict], ...]:
        """DEVIATION verdicts with their index that have not been `answered`, oldest first."""
        return tuple(self._deviations.items())

    def needs_halt(self, scope: Scope, receipt_index: int) -> bool:
        """Whether a deviation on a receipt asks for a (new) halt of its scope.

        Not where one came after the receipt: then the receipt is old evidence for what has been halted already, and
        perhaps resumed since.
        """
        return not any(index > receipt_index and _covers(halted, scope) for index, halted in self._halts)

    def settle(self, receipt_index: int) -> None:
        """A verdict has been appended; its entry will be observed later."""
        self._due.pop(receipt_index, None)

    def answered(self, verdict_index: int) -> None:
        """A deviation has its halt, or needs none."""
        self._deviations.pop(verdict_index, None)

    def halted(self, index: int, scope: Scope) -> None:
        """A halt has been appended; its entry will be observed later."""
        self._halts.append((index, scope))

    def observe(self, data: bytes) -> None:
        """Fold the entry at `position`. Raises BrokenLog where it does not follow from the one before it."""
        try:
            entry = Entry.from_bytes(data)
            if (entry.index, entry.previous) != (self.position, self._previous):
                raise ChainError(
                    self.position, f"names {entry.previous} as the one before it, and itself {entry.index}"
                )
            document = read_document(entry.envelope)
        except LedgerError as error:
            raise BrokenLog(f"the log is broken at entry {self.position}: {error}") from error
        self._frontier, self._previous = self._frontier.append(leaf_hash(data)), entry_hash(data)
        self._decide()
        self._fold(entry, document)

    def _fold(self, entry: Entry, document: Document) -> None:
        match document:
            case Receipt():
                self._add(Due(entry.index, document.receipt_id, entry.envelope, None), _confesses(document))
            case Verdict() if self._is_trusted(entry):
                self.settle(document.receipt_index)
                if document.outcome == DEVIATION:
                    self._deviations[entry.index] = document
            case Halt() if self._is_trusted(entry):
                self._halts.append((entry.index, document.scope))

    def _add(self, receipt: Due, certain: bool) -> None:
        if certain or self._rate == 1.0:
            self._due[receipt.index] = receipt
        elif self._draws:
            self._undecided = receipt

    def _decide(self) -> None:
        waiting = self._undecided
        if waiting is None or self._frontier.size < deciding_tree_size(waiting.index):
            return
        self._undecided = None
        if is_sampled(self.root, waiting.index, self._rate):
            draw = f"drawn at rate {self._rate:g} by the root over {self._frontier.size} entries"
            self._due[waiting.index] = Due(waiting.index, waiting.receipt_id, waiting.envelope, draw)

    def _is_trusted(self, entry: Entry) -> bool:
        try:
            self._trust.open(entry.envelope)
        except SignatureError as error:
            _log.warning("ignoring entry %d, which counts for the ledger and not for us: %s", entry.index, error)
            return False
        return True


def _confesses(receipt: Receipt) -> bool:
    """Whether the issuer's own replay deviated. Such a receipt is always due: its halt must not be left to chance."""
    return receipt.spec_decode.verified_identical_to_off is False


def _covers(halted: Scope, scope: Scope) -> bool:
    return halted.covers(scope.base_cid, scope.method, scope.head_cid)
