"""The checkpoints that callers see: the newest, and the newest with a quorum of witnesses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ledger.errors import NotFound, SignatureError
from ledger.keys.note import Note
from ledger.log.reader import LedgerReader
from ledger.tree.checkpoint import Checkpoint
from ledger.witness.cosignature import cosigners
from ledger.witness.cosignature_store import CosignatureStore
from ledger.witness.tlog_policy import Policy


@dataclass(frozen=True, slots=True)
class CosignedCheckpoint:
    """A signed note with its collected cosignatures. `cosigned`: POSIX seconds by the witness's key name."""

    note: bytes
    checkpoint: Checkpoint
    cosigned: Mapping[str, int]
    witnessed: bool


class Checkpoints:
    """Reads the sequencer's checkpoints and the collector's cosignatures. Blocking; thread-safe."""

    def __init__(
        self, reader: LedgerReader, policy: Policy | None = None, notes: CosignatureStore | None = None
    ) -> None:
        """Without a policy there are no witnesses, and no checkpoint counts as witnessed."""
        self._reader = reader
        self._policy = policy
        self._notes = notes

    def newest(self) -> CosignedCheckpoint:
        """The newest signed tree head."""
        head = self._reader.head()
        for note in self._of([head.size]):
            kept = self._read(note)
            if kept.checkpoint == head.checkpoint:
                return kept
        return self._read(head.note)

    def witnessed(self) -> CosignedCheckpoint:
        """The newest checkpoint that satisfies the policy. Raises NotFound if there is none."""
        for note in self._of(reversed(self._sizes())):
            read = self._read(note)
            if read.witnessed:
                return read
        raise NotFound("no checkpoint has been cosigned by enough witnesses yet")

    def earlier(self, size: int, most: int = 16) -> tuple[bytes, ...]:
        """At most `most` cosigned checkpoints below `size`, spread over the kept ones, rising."""
        below = [kept for kept in self._sizes() if 0 < kept < size]
        return tuple(self._of(below[:: max(1, -(-len(below) // most))]))

    @property
    def policy(self) -> Policy | None:
        return self._policy

    def _sizes(self) -> Sequence[int]:
        return () if self._notes is None else self._notes.sizes()

    def _of(self, sizes: Iterable[int]) -> Iterator[bytes]:
        """The kept cosigned notes of these sizes."""
        notes = (None if self._notes is None else self._notes.note(size) for size in sizes)
        return (note for note in notes if note is not None)

    def _read(self, data: bytes) -> CosignedCheckpoint:
        note = Note.from_bytes(data)
        checkpoint = Checkpoint.from_text(note.text)
        unknown = CosignedCheckpoint(data, checkpoint, {}, witnessed=False)
        if self._policy is None:
            return unknown
        try:
            times = cosigners(note, [witness.key for witness in self._policy.witnesses])
        except SignatureError:  # the file was changed
            return unknown
        names = {witness.name for witness in self._policy.witnesses if witness.key in times}
        by_name = {key.name: seconds for key, seconds in times.items()}
        return CosignedCheckpoint(data, checkpoint, by_name, bool(names) and self._policy.is_met_by(names))
