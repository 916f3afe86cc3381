"""The witness: it cosigns a log's checkpoints if each one extends its predecessor.

Follows c2sp.org/tlog-witness, "add-checkpoint". It keeps one fact for each log, the newest cosigned tree, and writes
the next tree to the disk before it signs. Two trees of one log that do not extend each other never both get its
signature, in any order of requests, and also after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ledger.errors import (
    Forked,
    FormatError,
    Inconsistent,
    ProofError,
    SignatureError,
    StaleRequest,
    UnknownLog,
    UnsignedCheckpoint,
)
from ledger.keys.note import Note, VerifierKey, check_key_name, verify_note
from ledger.keys.signer import Signer
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.merkle import EMPTY_ROOT, verify_consistency
from ledger.witness.cosignature import AddCheckpoint, cosign

_EMPTY = 0


@dataclass(frozen=True, slots=True)
class SeenTree:
    """The newest tree of a log that the witness has cosigned. Before the first checkpoint it is the empty tree. `note`
    is its signed checkpoint, b"" without one.
    """

    size: int = _EMPTY
    root: bytes = EMPTY_ROOT
    note: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Accusation:
    """Proof against a log: two checkpoints that it has signed, of one size and with two roots.

    The witness has cosigned `against`; it is b"" for the empty tree, whose root is known.
    """

    note: bytes
    against: bytes


class WitnessMemory(Protocol):
    """The memory of a witness, which must never be lost. Durability: `advance` and `accuse` have reached the disk when
    they return. Concurrency: from any thread, and from several processes over the same memory.
    """

    def latest(self, origin: str) -> SeenTree:
        """The newest tree of a log, the empty tree for a new log."""
        ...

    def advance(self, origin: str, old: SeenTree, new: SeenTree) -> bool:
        """Replace `old` by `new` atomically. Returns False, without a change, if `old` is not the latest."""
        ...

    def accuse(self, tree: Checkpoint, accusation: Accusation) -> None:
        """Keep the proof that a log has signed `tree` and another tree of its size. A tree is kept once, and a bounded
        number of each log.
        """
        ...


class Witness:
    """A witness of some logs. Thread-safe."""

    def __init__(
        self, name: str, key: Signer, logs: Iterable[VerifierKey], memory: WitnessMemory, clock: Callable[[], float]
    ) -> None:
        """`clock` gives POSIX seconds. Of the keys of one log, each replaces those before it. Raises FormatError for an
        invalid name of a key.
        """
        check_key_name(name)
        self._name = name
        self._key = key
        self._logs = tuple(logs)
        self._memory = memory
        self._clock = clock

    def add_checkpoint(self, body: bytes) -> bytes:
        """Cosign the checkpoint in a request, after keeping it; returns the line.

        Raises FormatError (answer 400), UnknownLog (404), UnsignedCheckpoint (403), StaleRequest and Forked (409),
        Inconsistent (422), and the errors of the memory.
        """
        request = AddCheckpoint.from_bytes(body)
        note = Note.from_bytes(request.checkpoint)
        checkpoint = Checkpoint.from_text(note.text)
        seen = self._memory.latest(checkpoint.origin)
        self._check_signature(note, checkpoint, seen)
        if request.old_size > checkpoint.size:
            raise FormatError("request", f"old size {request.old_size} exceeds the checkpoint's {checkpoint.size}")
        self._check_no_fork(request, checkpoint, seen)
        self._check_growth(request, checkpoint, seen)
        new = SeenTree(checkpoint.size, checkpoint.root, request.checkpoint)
        if new != seen and not self._memory.advance(checkpoint.origin, seen, new):
            raise StaleRequest(self._memory.latest(checkpoint.origin).size)  # another request was faster
        return cosign(note.text, self._name, self._key, int(self._clock())).to_line().encode()

    def seen(self, origin: str) -> bytes:
        """The log's signed note over the newest cosigned tree: evidence, if the log has signed another tree. Raises
        UnknownLog, also before the first checkpoint.
        """
        note = self._memory.latest(origin).note if any(log.name == origin for log in self._logs) else b""
        if not note:
            raise UnknownLog(f"this witness has cosigned no checkpoint of {origin}")
        return note

    def _check_signature(self, note: Note, checkpoint: Checkpoint, seen: SeenTree) -> None:
        """A replaced key, which may be a stolen one, signs nothing more once its successor's checkpoint is cosigned."""
        origin = checkpoint.origin
        keys = [log.key for log in reversed(self._logs) if log.name == origin]
        if not keys:
            raise UnknownLog(f"this witness does not watch {origin}")
        if seen.note:
            with suppress(SignatureError):  # by a key that is not listed any more
                keys = keys[: keys.index(verify_note(Note.from_bytes(seen.note), origin, keys)) + 1]
        try:
            verify_note(note, origin, keys)
        except SignatureError as error:
            raise UnsignedCheckpoint(str(error)) from None

    def _check_no_fork(self, request: AddCheckpoint, checkpoint: Checkpoint, seen: SeenTree) -> None:
        """Accuse a log that signed two trees of one size. Both signatures are the log's, so old size and proof of the
        request do not matter.
        """
        # There is one tree of no entries, with or without a checkpoint.
        if seen.size == checkpoint.size and checkpoint.root != (seen.root if seen.size else EMPTY_ROOT):
            self._memory.accuse(checkpoint, Accusation(request.checkpoint, seen.note))
            raise Forked(seen.size)

    def _check_growth(self, request: AddCheckpoint, checkpoint: Checkpoint, seen: SeenTree) -> None:
        """Raises Inconsistent. A failure is no proof against the log: an honest checkpoint with a false proof fails
        here too.
        """
        if request.old_size != seen.size:
            raise StaleRequest(seen.size)
        if seen.size == _EMPTY:
            if request.proof:
                raise Inconsistent("the proof from the empty tree is empty")
            return
        try:
            verify_consistency(seen.size, checkpoint.size, request.proof, seen.root, checkpoint.root)
        except ProofError as error:
            raise Inconsistent(str(error)) from None
