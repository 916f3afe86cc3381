"""Files that are whole or not there, and still there after a power cut: the one way in which kolm writes such a file.

The data goes into a draft beside the file, reaches the disk, takes the file's name at once, and then the folder, which
holds the names, reaches the disk too. A crash leaves the old file or the new one, perhaps with a draft beside it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

_DRAFT = ".draft-"


def write_durably(path: Path, data: bytes, mode: int = 0o600, folder_mode: int = 0o700) -> None:
    """Replace `path`, its folder made where missing; returns when the disk has it. Raises OSError."""
    with replaced_durably(path, mode, folder_mode) as file:
        file.write(data)


def keep_durably(path: Path, data: bytes, mode: int = 0o600, folder_mode: int = 0o700) -> None:
    """The same where `path` does not hold these bytes yet: a full disk is no matter then. Raises OSError."""
    try:
        if path.read_bytes() == data:
            return
    except FileNotFoundError:
        pass
    write_durably(path, data, mode, folder_mode)


def create_durably(path: Path, data: bytes, mode: int = 0o600, folder_mode: int = 0o700) -> None:
    """The same where there is no such file yet. Raises OSError, FileExistsError: a faster process's file stays."""
    with _drafted(path, mode, folder_mode, os.link) as file:
        file.write(data)


def replaced_durably(path: Path, mode: int = 0o600, folder_mode: int = 0o700) -> AbstractContextManager[BinaryIO]:
    """A file to write into, which takes the place of `path` at the end of the block. Raises OSError."""
    return _drafted(path, mode, folder_mode, os.replace)


def move_durably(draft: Path, path: Path) -> None:
    """Give a file, or a folder with what is in it, the name `path` once the disk has it. Raises OSError."""
    for each in (*draft.rglob("*"), draft):
        sync_path(each)
    os.replace(draft, path)
    sync_path(path.parent)


def remove_drafts(folder: Path) -> None:
    """Removes files that crashes have left half written. Call it while nobody writes."""
    for draft in folder.glob(f"{_DRAFT}*"):
        draft.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    """Make a file durable or, of a folder, what was created, renamed or removed in it. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _drafted(path: Path, mode: int, folder_mode: int, name: Callable[[str, Path], None]) -> Iterator[BinaryIO]:
    path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=_DRAFT)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield cast(BinaryIO, file)
            file.flush()
            os.fsync(file.fileno())
        name(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)
    sync_path(path.parent)
