"""The witness: cosigns a log's checkpoints for as long as each one extends the one before.

Follows c2sp.org/tlog-witness, "add-checkpoint". It keeps one fact a log, the newest tree that it has cosigned, and puts
the next one on disk before it signs. Two trees of one log that do not extend each other never both get its signature,
in no order of requests, and also after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """The newest tree of a log that the witness has cosigned. An empty log is seen before the first checkpoint.

    `note` is the signed checkpoint of it, b"" without one.
    """

    size: int = _EMPTY
    root: bytes = EMPTY_ROOT
    note: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Accusation:
    """Proof against a log: two checkpoints that it has signed, of one size and with two roots.

    The witness has cosigned `against`; it is b"" for the empty tree, whose root everybody knows.
    """

    note: bytes
    against: bytes


class WitnessMemory(Protocol):
    """The memory of a witness, which must never be lost. Durability: `advance` and `accuse` have reached the disk when
    they return. Concurrency: from any thread, and from several processes over the same memory.
    """

    def latest(self, origin: str) -> SeenTree:
        """The newest tree of a log, the empty one where none was ever seen."""
        ...

    def advance(self, origin: str, old: SeenTree, new: SeenTree) -> bool:
        """Put `new` in the place of `old`, in one step; False, and nothing done, where `old` is not the latest."""
        ...

    def accuse(self, tree: Checkpoint, accusation: Accusation) -> None:
        """Keep the proof that a log has signed `tree` beside another of its size. A tree that is kept is kept once, and
        of each log a bounded number: a log that signs more has been found out.
        """
        ...


class Witness:
    """One witness, for the logs that it is told to watch. Safe between threads."""

    def __init__(
        self, name: str, key: Signer, logs: Iterable[VerifierKey], memory: WitnessMemory, clock: Callable[[], float]
    ) -> None:
        """`clock` gives POSIX seconds. Raises FormatError for a name that no key may have."""
        check_key_name(name)
        self._name = name
        self._key = key
        self._logs = tuple(logs)
        self._memory = memory
        self._clock = clock

    def add_checkpoint(self, body: bytes) -> bytes:
        """The cosignature line for the checkpoint in a request, once it is kept.

        Raises FormatError (answer 400), UnknownLog (404), UnsignedCheckpoint (403), StaleRequest and Forked (409),
        Inconsistent (422), and what the memory raises.
        """
        request = AddCheckpoint.from_bytes(body)
        note = Note.from_bytes(request.checkpoint)
        checkpoint = Checkpoint.from_text(note.text)
        self._check_signature(note, checkpoint)
        if request.old_size > checkpoint.size:
            raise FormatError("request", f"old size {request.old_size} exceeds the checkpoint's {checkpoint.size}")
        seen = self._memory.latest(checkpoint.origin)
        self._check_no_fork(request, checkpoint, seen)
        self._check_growth(request, checkpoint, seen)
        new = SeenTree(checkpoint.size, checkpoint.root, request.checkpoint)
        if new != seen and not self._memory.advance(checkpoint.origin, seen, new):
            raise StaleRequest(self._memory.latest(checkpoint.origin).size)  # another request came in between
        return cosign(note.text, self._name, self._key, int(self._clock())).to_line().encode()

    def seen(self, origin: str) -> bytes:
        """The log's signed note over the newest tree that the witness has cosigned: evidence, if the log has signed
        another. Raises UnknownLog, also before the first one.
        """
        note = self._memory.latest(origin).note if any(log.name == origin for log in self._logs) else b""
        if not note:
            raise UnknownLog(f"this witness has cosigned no checkpoint of {origin}")
        return note

    def _check_signature(self, note: Note, checkpoint: Checkpoint) -> None:
        keys = [log.key for log in self._logs if log.name == checkpoint.origin]
        if not keys:
            raise UnknownLog(f"this witness does not watch {checkpoint.origin}")
        try:
            verify_note(note, checkpoint.origin, keys)
        except SignatureError as error:
            raise UnsignedCheckpoint(str(error)) from None

    def _check_no_fork(self, request: AddCheckpoint, checkpoint: Checkpoint, seen: SeenTree) -> None:
        """Both signatures are the log's, so nothing else of the request counts: not its old size, not its proof."""
        # Of no entries there is one tree, with or without a checkpoint of it before.
        if seen.size == checkpoint.size and checkpoint.root != (seen.root if seen.size else EMPTY_ROOT):
            self._memory.accuse(checkpoint, Accusation(request.checkpoint, seen.note))
            raise Forked(seen.size)

    def _check_growth(self, request: AddCheckpoint, checkpoint: Checkpoint, seen: SeenTree) -> None:
        """An honest log's checkpoint with anybody's proof fails here too, so a failure shows nothing about the log."""
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
