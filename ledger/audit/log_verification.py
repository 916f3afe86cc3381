"""Offline verification: one numbered checklist over the bytes of a log. No database, no network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from ledger.audit.contradiction import Contradiction
from ledger.audit.log_clock import DatedAhead
from ledger.audit.log_walk import CheckedEntry, CheckFailed, LogWalk, check_entry, without_unread_members
from ledger.audit.seen import SeenOnDisk
from ledger.documents.halt import HaltState
from ledger.documents.key_history import KeyHistory
from ledger.documents.receipt import Receipt
from ledger.documents.signed_document import kind_of, open_document
from ledger.errors import ChainError, FormatError, LedgerError, ProofError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.envelope import Envelope
from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint, claimed_checkpoint, open_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash, verify_inclusion

CHECKS = (
    "The checkpoint is signed by a trusted key of the log",
    "Every entry is canonical and has its own index",
    "Every document is well-formed and signed by a key that may sign its kind",
    "Every document is allowed at its position, and no receipt appears twice",
    "The checkpoint is over exactly these entries",
)

_PIECE = 128


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the checklist. `passed` is None if the check was not reached or had nothing to check."""

    number: int
    title: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a verification. `bad_index` is the first wrong entry; None if there is none.

    `size`, `root`, `chain` (`entry.chained`), `halts` and `kinds` (entries by kind) describe the entries up to the
    first failure. `defied_halts` has the receipts (index, and index of the halt) that were served in a halted scope
    (`halt_breach`): the log is in order, its operator is at fault. The log is also in order with entries that are
    `dated_ahead` and with `contradictions` of an auditor.
    """

    checks: tuple[Check, ...]
    problem: str | None
    bad_index: int | None
    size: int
    root: bytes
    chain: bytes
    halts: HaltState
    kinds: Mapping[str, int]
    defied_halts: tuple[tuple[int, int], ...]
    dated_ahead: DatedAhead
    contradictions: tuple[Contradiction, ...]

    @property
    def ok(self) -> bool:
        return self.problem is None


def verify_log(
    entries: Iterable[bytes],
    checkpoint: bytes | None,
    trusted: TrustedKeys,
    origin: str | None = None,
    now: datetime | None = None,
    spread: Spread = map,
) -> Report:
    """Run the checklist `CHECKS` over entries 0, 1, 2, … as they stream by, and stop at the first failure.

    `spread` may read the entries and verify their signatures in several processes, with an equal report.

    `checkpoint` is a signed note; entries beyond its size are checked too, although no signed tree head covers them
    yet. Without a checkpoint, checks 1 and 5 have nothing to check. `now` is the verifier's clock: times after
    it (by more than clocks differ) are reported and do not count. Wrong and unreadable bytes are never raised.
    """
    head, failed = None, None
    with closing(SeenOnDisk()) as seen:
        walk = LogWalk(KeyHistory.of(trusted), seen)
        walk.clock.now_is(now)
        try:
            head = _claimed_head(checkpoint, origin)
            _walk(walk, _Pieces(walk, iter(entries)), head, spread)
        except CheckFailed as reason:
            failed = reason
    if head is None or checkpoint is None:
        return _report(walk, None if checkpoint is None else False, failed)
    # Only now: an entry may have introduced its key, or replaced it.
    unsigned = _unsigned(checkpoint, walk.keys.at(max(head.size - 1, 0)), origin)
    if failed is None or failed.number == 5:
        failed = unsigned or failed
    return _report(walk, unsigned is None, failed)


def verify_receipt(envelope: bytes, trusted: TrustedKeys) -> Receipt:
    """The receipt in a DSSE envelope, if a trusted key of role receipts signed it.

    Raises FormatError, SignatureError.
    """
    document = open_document(Envelope.from_bytes(envelope), trusted)
    if not isinstance(document, Receipt):
        raise FormatError("payloadType", f"expected a receipt, got a {kind_of(document)}")
    return document


def verify_appended(
    envelope: bytes,
    entry: bytes,
    inclusion_proof: Sequence[bytes],
    checkpoint: bytes,
    keys: Iterable[PublicKey],
    origin: str | None = None,
) -> Entry:
    """The entry, if it holds this envelope and the signed checkpoint's tree holds it; for clients after an append.

    Raises FormatError, SignatureError, ProofError.
    """
    parsed = Entry.from_bytes(entry)
    if parsed.envelope != Envelope.from_bytes(envelope):
        raise ProofError(f"entry {parsed.index} holds another envelope")
    head = open_checkpoint(checkpoint, keys, origin)
    verify_inclusion(leaf_hash(entry), parsed.index, head.size, inclusion_proof, head.root)
    return parsed


def _claimed_head(checkpoint: bytes | None, origin: str | None) -> Checkpoint | None:
    """The tree head in a note whose signatures are checked later. Raises CheckFailed."""
    try:
        return None if checkpoint is None else claimed_checkpoint(Note.from_bytes(checkpoint), origin)
    except LedgerError as error:
        raise CheckFailed(1, str(error)) from error


def _unsigned(checkpoint: bytes, trusted: TrustedKeys, origin: str | None) -> CheckFailed | None:
    """The failure of check 1 if no key of the log has signed the checkpoint."""
    try:
        open_checkpoint(checkpoint, trusted.keys("log"), origin)
    except LedgerError as error:
        return CheckFailed(1, str(error))
    return None


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries that one process checks together, by the keys that were known when they were read."""

    entries: tuple[bytes, ...]
    keys: KeyHistory

    def checked(self) -> list[CheckedEntry]:
        return [without_unread_members(check_entry(data, self.keys)) for data in self.entries]


Spread = Callable[[Callable[[Piece], list[CheckedEntry]], Iterable[Piece]], Iterable[list[CheckedEntry]]]
"""`map`, or a variant with several processes; results in the order of the pieces."""


class _Pieces:
    """A log in pieces, as it is read. `waiting` has the pieces that were taken, `failure` the error that ended
    the log.
    """

    def __init__(self, walk: LogWalk, entries: Iterator[bytes]) -> None:
        self.waiting: deque[Piece] = deque()
        self.failure: LedgerError | None = None
        self._walk = walk
        self._entries = entries

    def __iter__(self) -> Iterator[Piece]:
        while entries := tuple(self._read()):
            self.waiting.append(Piece(entries, self._walk.keys))
            yield self.waiting[-1]

    def _read(self) -> Iterator[bytes]:
        """Yield the entries of one piece. Entries before a failure are a piece too: their checks may fail first."""
        try:
            yield from islice(self._entries if self.failure is None else (), _PIECE)
        except LedgerError as error:
            self.failure = error


def _walk(walk: LogWalk, pieces: _Pieces, head: Checkpoint | None, spread: Spread) -> None:
    _compare_root(walk, head)
    for checked in spread(Piece.checked, pieces):
        piece = pieces.waiting.popleft()
        for data, entry in zip(piece.entries, checked, strict=True):
            # A key rotation counts immediately: entries read before it are checked again with the present keys.
            walk.take(entry if piece.keys is walk.keys else check_entry(data, walk.keys))
            _compare_root(walk, head)
    if isinstance(pieces.failure, ChainError):  # the database names the damaged entry
        raise CheckFailed(2, pieces.failure.problem, pieces.failure.index) from pieces.failure
    if pieces.failure is not None:  # otherwise it is the next expected entry
        raise CheckFailed(2, f"cannot be read: {pieces.failure}", walk.frontier.size) from pieces.failure
    if head is not None and walk.frontier.size < head.size:
        raise CheckFailed(5, f"the checkpoint covers {head.size} entries, the log holds {walk.frontier.size}")


def _compare_root(walk: LogWalk, head: Checkpoint | None) -> None:
    if head is not None and walk.frontier.size == head.size and walk.frontier.root() != head.root:
        raise CheckFailed(5, f"the first {head.size} entries have another root than the checkpoint over them")


def _report(walk: LogWalk, signed: bool | None, failed: CheckFailed | None) -> Report:
    """`signed` is whether a key of the log, known from the entries so far, has signed the checkpoint; None without
    one.
    """
    return Report(
        checks=tuple(_check(number, walk, signed, failed) for number in range(1, len(CHECKS) + 1)),
        problem=None if failed is None else str(failed),
        bad_index=None if failed is None else failed.index,
        size=walk.frontier.size,
        root=walk.frontier.root(),
        chain=walk.chain,
        halts=walk.halts,
        kinds=dict(walk.kinds),
        defied_halts=walk.watch.pairs(),
        dated_ahead=walk.clock.ahead,
        contradictions=tuple(walk.contradictions),
    )


def _check(number: int, walk: LogWalk, signed: bool | None, failed: CheckFailed | None) -> Check:
    title = CHECKS[number - 1]
    entries = f"{walk.frontier.size} entries"
    if number in (1, 5) and signed is None:
        return Check(number, title, None, "no checkpoint was given")
    if number == 1 and signed is False and failed is not None and failed.number > 1:
        return Check(number, title, None, "not reached")  # a later entry may introduce its key
    if failed is None or (number == 1 != failed.number) or (number < 5 == failed.number):
        return Check(number, title, True, "" if number in (1, 5) else entries)
    if number == failed.number:
        return Check(number, title, False, str(failed))
    # Checks 2 to 4 run entry by entry, so the failure of one ends the others.
    return Check(
        number, title, None, "not reached" if 1 in (number, failed.number) or number == 5 else f"held for {entries}"
    )
