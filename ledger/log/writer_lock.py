"""The lock of the process that writes to a file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ledger.errors import StoreError, StoreLocked


class WriterLock:
    """Held from construction to `release`. The kernel drops it when the process dies, so a crash needs no clean-up."""

    def __init__(self, guarded: Path) -> None:
        """Raises StoreLocked if another process, or another store in this process, holds the lock.

        The lock is in the folder of the file that links resolve to: two links to one file are one ledger.
        """
        resolved = Path(os.path.realpath(guarded))
        self.path = resolved.with_name(resolved.name + ".lock")
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot open {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreLocked(
                f"{guarded} is open for writing in another process (pid {holder}); stop it first"
            ) from None
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode("ascii"), 0)
        except OSError as error:
            os.close(self._descriptor)
            raise StoreError(f"cannot write {self.path}: {error.strerror}") from None

    def release(self) -> None:
        """Let another process write. Releasing twice changes nothing. The file stays: removing it would race."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
