"""The data folder of `kolm up`, on which one stack of services runs at a time."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from ledger.durable_file import make_folder
from ledger.encoding.text_forms import timestamp
from services.cli.frame.exits import UsageError

_LOCK = Path("up.lock")
_LOCKS = (
    (_LOCK, "`kolm up`"),
    (Path("ledger.sqlite3.lock"), "a ledger"),
    (Path("generation", "lock"), "a generation service"),
)
"""Locks in the folder, each with the program that holds it. A service that was started alone uses the same tokens."""
_HOLDER = re.compile(rb"(?P<pid>\d{1,10})(?: (?P<since>[0-9TZ:.-]{1,40}))?\s*")
_HINT = (
    "stop it first, or give this stack a folder of its own: --data-dir FOLDER, with ports of its own "
    "(--generation-port 0 and so on); other ports on the same folder do not help"
)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A block in which no other process brings services up on the folder, which is made if it is missing. The lock ends
    with the process, however that ends. Raises UsageError if services run on the folder, OSError.
    """
    make_folder(folder)
    expect_unused(folder)
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(lock, fcntl.LOCK_EX, folder, "`kolm up`")
        with suppress(OSError):  # a full disk: the lock holds without the line, which only names its holder
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()} {timestamp(datetime.now(UTC))}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def expect_unused(folder: Path) -> None:
    """Raises UsageError if another process runs services on the folder, OSError. Makes no file."""
    for name, program in _LOCKS:
        try:
            lock = os.open(folder / name, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            _lock(lock, fcntl.LOCK_SH, folder, program)
        finally:
            os.close(lock)


def _lock(lock: int, kind: int, folder: Path, program: str) -> None:
    """Raises UsageError, which names the holder, if another process has the lock."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        found = _HOLDER.fullmatch(os.pread(lock, 64, 0))
        pid, since = found.groups() if found else (None, None)
        known = [f"pid {pid.decode()}"] if pid else []
        known += [f"since {since.decode()}"] if since else []
        holder = f"{program} ({', '.join(known)})" if known else f"{program} of another process"
        raise UsageError(f"--data-dir: {holder} runs on {folder}", _HINT) from None
