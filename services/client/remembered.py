"""The newest checkpoint that a client has seen: what a log is held to that would rather have been another."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class RememberedCheckpoint:
    """One signed note, in a file where a path is given, so that the next run remembers it too. Not for two threads."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises OSError where there is a file and it cannot be read."""
        self._path = path
        self._note = path.read_bytes() if path is not None and path.exists() else None

    @property
    def note(self) -> bytes | None:
        """None before the first."""
        return self._note

    def keep(self, note: bytes) -> None:
        """Returns once it is on disk; a crash leaves the old one or the new one. Raises OSError."""
        if self._path is not None:
            _replace(self._path, note)
        self._note = note


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
