"""Atomic and durable writes of files: a file is complete or missing, also after a power cut.

The data goes into a draft in the same folder and reaches the disk, the draft takes the file's name, and the folder
reaches the disk. A crash leaves the old file or the new file, perhaps with a draft.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, cast

DRAFT = ".draft-"


def write_durably(
    path: Path, data: bytes, mode: int = 0o600, folder_mode: int = 0o700, drafts: Path | None = None
) -> None:
    """Replace `path`, and make its folder if missing; returns when it is on the disk. The draft is in `drafts`, if
    given, which is a folder of the same file system. Raises OSError.
    """
    with _drafted(path, mode, folder_mode, os.replace, drafts) as file:
        file.write(data)


def keep_durably(path: Path, data: bytes, mode: int = 0o600, folder_mode: int = 0o700) -> None:
    """`write_durably`, unless `path` holds these bytes already, so that a full disk does not matter. Raises OSError."""
    try:
        if path.read_bytes() == data:
            return
    except FileNotFoundError:
        pass
    write_durably(path, data, mode, folder_mode)


def create_durably(path: Path, data: bytes, mode: int = 0o600, folder_mode: int = 0o700) -> None:
    """`write_durably` without replacing a file. Raises FileExistsError, also if another process was faster, OSError."""
    with _drafted(path, mode, folder_mode, os.link) as file:
        file.write(data)


def replaced_durably(path: Path, mode: int = 0o600, folder_mode: int = 0o700) -> AbstractContextManager[BinaryIO]:
    """Open a file that replaces `path` at the end of the block. Raises OSError."""
    return _drafted(path, mode, folder_mode, os.replace)


def move_durably(draft: Path, path: Path) -> None:
    """Rename a file, or a folder with its files, to `path` once all of it is on the disk. Raises OSError."""
    for each in (*draft.rglob("*"), draft):
        sync_path(each)
    os.replace(draft, path)
    sync_path(path.parent)


def remove_drafts(folder: Path) -> list[Path]:
    """Remove the drafts that crashes have left; return their paths. Call it when no process writes."""
    drafts = list(folder.glob(f"{DRAFT}*"))
    for draft in drafts:
        draft.unlink(missing_ok=True)
    return drafts


def sync_path(path: Path) -> None:
    """Make a file durable, or the created, renamed and removed names of a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and its parents if missing; returns when their names are on the disk. Raises OSError."""
    missing = list(takewhile(lambda each: not each.exists(), (folder, *folder.parents)))
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    for each in reversed(missing):
        sync_path(each.parent)


@contextmanager
def _drafted(
    path: Path, mode: int, folder_mode: int, name: Callable[[str, Path], None], drafts: Path | None = None
) -> Iterator[BinaryIO]:
    make_folder(path.parent, folder_mode)
    handle, draft = tempfile.mkstemp(dir=drafts or path.parent, prefix=DRAFT)
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
