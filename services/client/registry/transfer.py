"""Uploads and downloads of files; a broken one continues where it stopped, and every digest is checked."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ledger.documents.named_file import NamedFile
from services.client.errors import Cancelled, DataLoss, DeadlineExceeded, KolmError, Unavailable
from services.client.registry.registry import RegistryClient

Progress = Callable[[int], None]
"""Takes the number of bytes of a file that have been transferred so far, by all attempts."""

_CHUNK_BYTES = 1024 * 1024
_ATTEMPTS = 6  # in a row without a byte transferred
_PAUSE_SECONDS = 0.2  # doubles from attempt to attempt


def upload(
    registry: RegistryClient, part: NamedFile, opened: Callable[[], IO[bytes]], progress: Progress = lambda _: None
) -> bool:
    """Upload bytes, `opened` anew for each attempt; False if they were there already.

    Raises KolmError after several failed attempts.
    """
    committed = _committed(registry, part)
    if committed is None:
        return False
    for attempt in _attempts():
        try:
            registry.upload(part.digest, part.size, committed, _chunks(opened, committed, progress))
        except KolmError as error:
            hopeless = error.reason == "DIGEST_MISMATCH" and committed == 0  # no bytes beyond the file's end
            if hopeless or attempt.last or not _may_go_on(error):
                raise
            now = _committed_later(registry, part, committed)
            if now is None:  # another client has uploaded it
                return True
            attempt.progressed(now > committed)
            committed = now
        else:
            break
    progress(part.size)
    return True


def download(registry: RegistryClient, part: NamedFile, path: Path, progress: Progress = lambda _: None) -> None:
    """Download a file, verified; until it is complete, `<path>.part` holds what has arrived.

    Raises KolmError after several attempts in vain, DataLoss if the bytes do not have the digest.
    """
    if path.is_file() and path.stat().st_size == part.size and _digest(path) == part.digest:
        progress(part.size)
        return
    arriving = path.with_name(path.name + ".part")
    for attempt in _attempts():
        before = _size(arriving)
        try:
            _receive(registry, part, arriving, progress)
        except KolmError as error:
            if not _may_go_on(error) or attempt.last:
                raise
            attempt.progressed(_size(arriving) > before)
        else:
            break
    if _digest(arriving) != part.digest:
        arriving.unlink()
        raise DataLoss(f"{part.name}: what arrived is not {part.digest}", reason="DIGEST_MISMATCH")
    os.replace(arriving, path)


def _receive(registry: RegistryClient, part: NamedFile, path: Path, progress: Progress) -> None:
    if _size(path) > part.size:
        path.unlink()
    position = _size(path)
    with path.open("ab") as file, registry.download(part.digest, position) as chunks:
        for chunk in chunks:
            position += len(chunk)
            if position > part.size:
                raise DataLoss(f"{part.name}: more than {part.size} bytes arrived", reason="DIGEST_MISMATCH")
            file.write(chunk)
            progress(position)
    if position < part.size:
        raise Unavailable(f"{part.name}: {position} of {part.size} bytes arrived")


def _committed(registry: RegistryClient, part: NamedFile) -> int | None:
    """How many bytes of it the registry has; None for all."""
    missing = registry.missing([(part.digest, part.size)])
    return missing[0].committed_size if missing else None


def _committed_later(registry: RegistryClient, part: NamedFile, before: int) -> int | None:
    """The same after a failure, as long as the registry may be away."""
    try:
        return _committed(registry, part)
    except (Unavailable, DeadlineExceeded):
        return before


def _chunks(opened: Callable[[], IO[bytes]], start: int, progress: Progress) -> Iterator[bytes]:
    with opened() as file:
        file.seek(start)
        while chunk := file.read(_CHUNK_BYTES):
            progress(start)
            yield chunk
            start += len(chunk)


def _may_go_on(error: KolmError) -> bool:
    again = ("UPLOAD_TAKEN_OVER", "OFFSET_MISMATCH", "DIGEST_MISMATCH")
    return isinstance(error, Unavailable | DeadlineExceeded | Cancelled) or error.reason in again


class _Attempt:
    """Counts the failed attempts since the last progress."""

    def __init__(self) -> None:
        self._vain = 0

    @property
    def last(self) -> bool:
        return self._vain >= _ATTEMPTS - 1

    def progressed(self, by_something: bool) -> None:
        self._vain = 0 if by_something else self._vain + 1
        time.sleep(_PAUSE_SECONDS * 2**self._vain)


def _attempts() -> Iterator[_Attempt]:
    attempt = _Attempt()
    while True:
        yield attempt


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
