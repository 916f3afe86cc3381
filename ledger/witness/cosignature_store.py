"""Cosigned checkpoints on disk: one file each, merged with new cosignatures."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ledger.durable_file import make_folder, write_durably
from ledger.errors import FormatError, SignatureError, StoreError
from ledger.keys.ed25519 import PublicKey
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint, open_checkpoint

_FILE = re.compile(r"([0-9]{19})\.note")
_MOST_KEPT = 1000
_LARGEST_NOTE = 2**20


class CosignatureStore:
    """The notes of one log with the cosignatures collected for them, by tree size. Thread-safe. Durable once `record`
    has returned. The newest 1,000 are kept: older ones are not needed, because the log can prove consistency from any
    size. The folder may have notes of an earlier log, which has ended: they stay as evidence until this log has their
    sizes.
    """

    def __init__(self, folder: Path, origin: str) -> None:
        """`origin` is the log's name. Raises StoreError if the folder cannot be made or read."""
        self._folder = folder
        self._lock = threading.Lock()
        self._others: set[int] = set()
        try:
            make_folder(folder)
        except OSError as error:
            raise StoreError(f"cannot create {folder}: {error.strerror}") from None
        own = f"{origin}\n".encode()
        self._others.update(size for size in self.sizes() if not (self.note(size) or b"").startswith(own))

    def sizes(self) -> list[int]:
        """Sizes of the log's trees that have a cosigned checkpoint, rising. Raises StoreError."""
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            raise StoreError(f"cannot read {self._folder}: {error.strerror}") from None
        return sorted({int(match[1]) for name in names if (match := _FILE.fullmatch(name))} - self._others)

    def note(self, size: int) -> bytes | None:
        """The log's cosigned checkpoint over `size` entries; None without one."""
        return None if size in self._others else self._read(self._path(size))

    def record(self, size: int, note: Note) -> None:
        """Keep a note, with all its known cosignatures. Raises StoreError, FormatError for another tree, and for a note
        that would be too long.
        """
        with self._lock:
            kept = self.note(size)
            merged = note if kept is None else merge(Note.from_bytes(kept), note)
            data = merged.to_bytes()
            Note.from_bytes(data)  # a note that is too long would be in the way of every reader
            self._write(self._path(size), data)
            self._others.discard(size)
            for old in self.sizes()[:-_MOST_KEPT]:
                with suppress(OSError):  # the next note removes it
                    self._path(old).unlink()

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
        try:
            write_durably(path, data, mode=0o644, folder_mode=0o755)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None


def newest_signed(folder: Path, keys: Iterable[PublicKey], origin: str | None) -> Checkpoint | None:
    """The newest checkpoint of `origin` (None: of any log) in a folder of notes that one of the log's keys has signed;
    None without one. Other files are ignored: evidence needs the log's key. Raises StoreError if the folder cannot be
    read.
    """
    keys = tuple(keys)
    try:
        names = sorted((name for name in os.listdir(folder) if _FILE.fullmatch(name)), reverse=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {error.strerror}") from None
    return next((head for name in names if (head := _signed(folder / name, keys, origin)) is not None), None)


def _signed(path: Path, keys: tuple[PublicKey, ...], origin: str | None) -> Checkpoint | None:
    try:
        with path.open("rb") as file:
            head = open_checkpoint(file.read(_LARGEST_NOTE), keys, origin)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except (FormatError, SignatureError):
        return None
    return head if head.size == int(path.stem) else None  # an older note under a newer name must not hide the newest


def merge(one: Note, other: Note) -> Note:
    """One note with the signatures of both; of two by one key, the second note's. Raises FormatError for two texts."""
    if one.text != other.text:
        raise FormatError("note", "is another checkpoint of the same size")
    lines = {(line.name, line.key_id): line for line in (*one.signatures, *other.signatures)}
    return replace(one, signatures=tuple(lines.values()))
