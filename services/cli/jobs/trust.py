"""The public keys that a person at the command line trusts, and what they show about a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ledger.keys.note import Note
from ledger.keys.trusted_keys import TrustedKeys
from ledger.tree.checkpoint import Checkpoint, open_checkpoint
from services.cli.exits import UsageError


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint and its signed note. `checked` is False if there is no directory of keys at `trusted`."""

    checkpoint: Checkpoint
    note: bytes
    checked: bool
    trusted: Path


def load_trusted(directory: Path) -> TrustedKeys:
    """Raises UsageError if there is no directory of keys, KeyFileError for a file that is no key."""
    if not directory.is_dir():
        raise UsageError(
            f"no trusted keys: {directory} is not a directory",
            "name one with --trusted, or the --data-dir of `kolm up`",
        )
    return TrustedKeys.load(directory)


def opened_checkpoint(note: bytes, trusted: Path) -> OpenedCheckpoint:
    """Raises SignatureError, FormatError for a note that is no checkpoint of a trusted log."""
    if not trusted.is_dir():
        return OpenedCheckpoint(Checkpoint.from_text(Note.from_bytes(note).text), note, False, trusted)
    return OpenedCheckpoint(open_checkpoint(note, load_trusted(trusted).keys("log")), note, True, trusted)
