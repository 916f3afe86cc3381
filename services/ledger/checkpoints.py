"""The checkpoints that callers see: the newest, and the newest that enough witnesses have cosigned."""

from __future__ import annotations

from collections.abc import Mapping
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
    """A signed note with what has been collected for it. `cosigned`: POSIX seconds by the witness's key name."""

    note: bytes
    checkpoint: Checkpoint
    cosigned: Mapping[str, int]
    witnessed: bool


class Checkpoints:
    """Reads what the sequencer signs and the collector collects. Blocking; safe between threads."""

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
        kept = None if self._notes is None else self._notes.note(head.size)
        return self._read(head.note if kept is None else kept)

    def witnessed(self) -> CosignedCheckpoint:
        """The newest that satisfies the policy. Raises NotFound where none does."""
        for note in self._kept():
            read = self._read(note)
            if read.witnessed:
                return read
        raise NotFound("no checkpoint has been cosigned by enough witnesses yet")

    def earlier(self, size: int, most: int = 16) -> tuple[bytes, ...]:
        """Up to `most` cosigned checkpoints below `size`, spread over those that are kept, rising."""
        below = [] if self._notes is None else [kept for kept in self._notes.sizes() if 0 < kept < size]
        chosen = below[:: max(1, -(-len(below) // most))] if below else []
        notes = (self._notes.note(kept) for kept in chosen) if self._notes is not None else iter(())
        return tuple(note for note in notes if note is not None)

    @property
    def policy(self) -> Policy | None:
        return self._policy

    def _kept(self) -> list[bytes]:
        """Cosigned notes, the newest first."""
        if self._notes is None:
            return []
        notes = (self._notes.note(size) for size in reversed(self._notes.sizes()))
        return [note for note in notes if note is not None]

    def _read(self, data: bytes) -> CosignedCheckpoint:
        note = Note.from_bytes(data)
        checkpoint = Checkpoint.from_text(note.text)
        if self._policy is None:
            return CosignedCheckpoint(data, checkpoint, {}, witnessed=False)
        try:
            times = cosigners(note, [witness.key for witness in self._policy.witnesses])
            names = {witness.name for witness in self._policy.witnesses if witness.key in times}
        except SignatureError:  # somebody changed the file
            return CosignedCheckpoint(data, checkpoint, {}, witnessed=False)
        by_name = {key.name: seconds for key, seconds in times.items()}
        return CosignedCheckpoint(data, checkpoint, by_name, bool(names) and self._policy.is_met_by(names))
