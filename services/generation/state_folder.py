"""Folders that one process has alone: a server's state, while it runs, and a cache, while it is written."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOADING = "KOLM_LOADING"
"""Environment variable: the folder whose lock servers share while they load, and that an auditor waits for."""


class StateTaken(Exception):
    """Every folder that this server might have is another one's."""

    def __init__(self, folder: Path, replicas: int, flag: str) -> None:
        who = "another server has it" if replicas == 1 else f"{replicas} servers share it already"
        super().__init__(f"{flag}: {folder}: {who}; give this one its own, or share one by a larger --replicas")


@contextmanager
def state_folder(folder: Path, replicas: int, flag: str = "--state-dir") -> Iterator[Path]:
    """The folder of this server: `folder` itself, or of several `replicas` the first numbered one in it that is free.

    A replica that takes the place of another finds what that one left. The lock ends with the process, however it
    ends. Raises StateTaken, which names the `flag`, OSError.
    """
    for candidate in (folder,) if replicas == 1 else (folder / str(number) for number in range(replicas)):
        candidate.mkdir(parents=True, exist_ok=True)
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
    """A block that no other process of the same folder is in, or only `shared` ones are; a process that dies
    in it lets the next one in.

    Where the folder cannot be written to nobody waits: there is nothing to leave.
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


def await_empty(folder: Path, seconds: float, pause: Callable[[float], object] = time.sleep) -> bool:
    """Return True once no process is in a block of `one_at_a_time` for this folder, False if one still is after
    `seconds`. Looks again after each `pause`, which takes seconds; a folder that cannot be written to counts as empty.
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


_LOOK_SECONDS = 0.2
