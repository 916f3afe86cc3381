"""Files that are whole or not there, and still there after a power cut."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_DRAFT = ".draft-"


def write_durably(path: Path, data: bytes) -> None:
    """Replace `path` (mode 0600, its folder made with 0700) at once; returns when the disk has it. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=_DRAFT)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_drafts(folder: Path) -> None:
    """Removes files that crashes of `write_durably` have left half written. Call it while nobody writes."""
    for draft in folder.glob(f"{_DRAFT}*"):
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
