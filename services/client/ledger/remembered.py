"""The newest checkpoint that a client has seen. Later ones have to extend it."""

from __future__ import annotations

from pathlib import Path

from ledger.durable_file import write_durably


class RememberedCheckpoint:
    """One signed note; with a path it is kept in a file, for the next run. Not safe between threads."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises OSError if there is a file that cannot be read."""
        self._path = path
        self._note = path.read_bytes() if path is not None and path.exists() else None

    @property
    def note(self) -> bytes | None:
        """None before the first."""
        return self._note

    def keep(self, note: bytes) -> None:
        """Returns once it is on disk; a crash leaves the old one or the new one. Raises OSError."""
        if self._path is not None:
            write_durably(self._path, note)
        self._note = note
