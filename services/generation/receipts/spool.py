"""The spool: appends that the ledger has not confirmed, one durable file each, in order.

    <folder>/<20 digits>.append     kolm.ledger.v1.AppendEntryRequest, waiting
    <folder>/refused/…              the same, refused by the ledger; tried again at the next start
The files hold prompts and outputs: the folder is 0700, the files are 0600. A file is removed when the ledger has
confirmed it. After a crash before that, the same envelope is appended again and gets the first one's index.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from kolm.ledger.v1 import ledger_pb2
from services.generation.durable_file import remove_drafts, sync_folder, write_durably

_log = logging.getLogger(__name__)
_SUFFIX = ".append"
_OURS = "[0-9]" * 20 + _SUFFIX


@dataclass(frozen=True, slots=True)
class Spooled:
    """An append and its file."""

    path: Path
    request: ledger_pb2.AppendEntryRequest


class Spool:
    """Blocks: call it on a thread, one call at a time."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the folder cannot be made."""
        self._folder = folder
        self._refused = folder / "refused"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._refused.mkdir(mode=0o700, exist_ok=True)
        self._next = 0

    def recover(self) -> list[Spooled]:
        """All that an earlier process left, oldest first, refused ones included. Call it once, before the rest."""
        remove_drafts(self._folder)
        for path in sorted(self._refused.glob(_OURS)):
            os.replace(path, self._folder / path.name)
        paths = sorted(self._folder.glob(_OURS))
        self._next = max((int(path.stem) + 1 for path in paths), default=0)
        return self._read(paths)

    def restore(self) -> list[Spooled]:
        """Take back the refused ones."""
        names = sorted(path.name for path in self._refused.glob(_OURS))
        for name in names:
            os.replace(self._refused / name, self._folder / name)
        return self._read([self._folder / name for name in names])

    def adopt(self, paths: Iterable[Path]) -> list[Spooled]:
        """Take over files of another folder on this disk, each an append. Raises OSError."""
        taken = []
        for path in paths:
            taken.append(self._new_path())
            os.replace(path, taken[-1])
        sync_folder(self._folder)
        return self._read(taken)

    def put(self, request: ledger_pb2.AppendEntryRequest) -> Spooled:
        """Returns once it is on disk. Raises OSError."""
        path = self._new_path()
        write_durably(path, request.SerializeToString())
        return Spooled(path, request)

    def _new_path(self) -> Path:
        path = self._folder / f"{self._next:020d}{_SUFFIX}"
        self._next += 1
        return path

    def remove(self, path: Path) -> None:
        """The ledger has it. If a crash undoes this, the next start does it again."""
        path.unlink(missing_ok=True)

    def refuse(self, path: Path) -> None:
        """Put it aside."""
        os.replace(path, self._refused / path.name)
        sync_folder(self._refused)

    def _read(self, paths: list[Path]) -> list[Spooled]:
        found = []
        for path in paths:
            try:
                found.append(Spooled(path, ledger_pb2.AppendEntryRequest.FromString(path.read_bytes())))
            except DecodeError:
                damaged = path.with_suffix(".damaged")
                _log.error("%s is no append; it is kept as %s for somebody to look at", path, damaged)
                os.replace(path, damaged)
        return found
