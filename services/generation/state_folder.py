"""Folders with a lock: a server's state while it runs, a cache while it is written."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger.durable_file import make_folder

LOADING = "KOLM_LOADING"
"""Environment variable: the folder whose lock servers share while they load, and an auditor waits for."""
_LOOK_SECONDS = 0.2


class StateTaken(Exception):
    """Every folder that this server may use is locked by another server."""

    def __init__(self, folder: Path, replicas: int, flag: str) -> None:
        who = "another server uses it" if replicas == 1 else f"{replicas} servers share it already"
        super().__init__(f"{flag}: {folder}: {who}; give this one its own, or share one by a larger --replicas")


@contextmanager
def state_folder(folder: Path, replicas: int, flag: str = "--state-dir") -> Iterator[Path]:
    """Lock the folder of this server: `folder` itself, or for several `replicas` its first unlocked numbered subfolder.

    A replica that replaces another finds the files of that replica. The lock ends with the process, however it ends.
    Raises StateTaken, which names the `flag`, OSError.
    """
    for candidate in (folder,) if replicas == 1 else (folder / str(number) for number in range(replicas)):
        make_folder(candidate)
        descriptor = os.open(candidate / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield candidate
        finally:
            os.close(descriptor)
        return
    raise StateTaken(folder, replicas, flag)


@contextmanager
def one_at_a_time(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """A block that one process of the folder is in at a time, or several `shared` ones. A lock ends with its process.

    Does not wait if the folder is not writable: nothing can be stored in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def only_one(lock: Path, refused: Exception) -> Iterator[None]:
    """A block that one process at a time is in; raises `refused` if another is. The file `lock` is removed at its end;
    the lock ends with its process. Raises OSError.
    """
    make_folder(lock.parent)
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = os.path.samestat(os.fstat(file.fileno()), lock.stat())  # the other may have removed it meanwhile
        except (BlockingIOError, FileNotFoundError):
            locked = False
        if not locked:
            raise refused
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def await_empty(folder: Path, seconds: float, pause: Callable[[float], object] = time.sleep) -> bool:
    """Wait until no process is in a block of `one_at_a_time` for this folder; returns False if one still is after
    `seconds`. `pause` waits between two attempts, given seconds; a folder that is not writable counts as empty.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return True
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                pause(_LOOK_SECONDS)
            else:
                return True
    finally:
        os.close(handle)
