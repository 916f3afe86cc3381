"""Cosigned checkpoints, kept beside those that the log signed: one file each, merged as cosignatures come."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from pathlib import Path

from ledger.errors import FormatError, StoreError
from ledger.note import Note

_FILE = re.compile(r"([0-9]{19})\.note")
_STAMP = ".tsr"
_MOST_KEPT = 1000


class WitnessedNotes:
    """The notes of one log with the cosignatures collected for them, by tree size. Safe between threads.

    Durable once `record` has returned. The newest 1,000 are kept: older ones are convenience, a consistency proof from
    them can be had at any time.
    """

    def __init__(self, folder: Path) -> None:
        """Raises StoreError where the folder cannot be made."""
        self._folder = folder
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create {folder}: {error.strerror}") from None

    def sizes(self) -> list[int]:
        """Of the trees that have a cosigned checkpoint, rising."""
        return sorted(int(match[1]) for name in os.listdir(self._folder) if (match := _FILE.fullmatch(name)))

    def note(self, size: int) -> bytes | None:
        """The cosigned checkpoint over `size` entries; None where there is none."""
        return self._read(self._path(size))

    def timestamp(self, size: int) -> bytes | None:
        """The RFC 3161 response over that checkpoint; None where there is none."""
        return self._read(self._path(size).with_suffix(_STAMP))

    def record(self, size: int, note: Note) -> None:
        """Keep a note, with all cosignatures of it that are known already. Raises StoreError."""
        with self._lock:
            kept = self.note(size)
            merged = note if kept is None else merge(Note.from_bytes(kept), note)
            self._write(self._path(size), merged.to_bytes())
            for old in self.sizes()[:-_MOST_KEPT]:
                self._path(old).unlink(missing_ok=True)
                self._path(old).with_suffix(_STAMP).unlink(missing_ok=True)

    def record_timestamp(self, size: int, response: bytes) -> None:
        """Keep an RFC 3161 response beside a note. Raises StoreError."""
        self._write(self._path(size).with_suffix(_STAMP), response)

    def _path(self, size: int) -> Path:
        return self._folder / f"{size:019d}.note"

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from None

    def _write(self, path: Path, data: bytes) -> None:
        draft = path.with_name(f".{path.name}")
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None


def merge(one: Note, other: Note) -> Note:
    """One note with the signatures of both; of two by one key, the other's. Raises FormatError for two texts."""
    if one.text != other.text:
        raise FormatError("note", "is another checkpoint of the same size")
    lines = {(line.name, line.key_id): line for line in (*one.signatures, *other.signatures)}
    return replace(one, signatures=tuple(lines.values()))
