"""Trusted public keys of a directory: a key published there is trusted from the next signature on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ledger.errors import KeyFileError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.trusted_keys import TrustedKeys

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0

_Stamp = tuple[tuple[str, int, int], ...]


class TrustedDirectory(Mapping[str, tuple[PublicKey, ...]]):
    """Role to keys, and the operators' threshold, for `TrustedDirectory(path).trusted()`. Safe between threads.

    Reads the directory again when a file's name, size or time has changed: at once if a file came or went, which takes
    one system call for each signature, and within a second if one was rewritten in place. While it cannot be read, the
    keys of the last good reading stay; the first reading raises KeyFileError. Anybody who can write there decides who
    may sign.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic, *, retired: bool = True) -> None:
        """`retired` also trusts keys that were replaced: readers of old entries need them, admission of new ones must
        not have them.
        """
        self._directory = directory
        self._retired = retired
        self._clock = clock
        self._lock = threading.Lock()
        self._changed, self._looked = self._directory_time(), clock()
        self._stamp = self._look()
        self._keys = TrustedKeys.load(directory, retired=retired)

    def trusted(self) -> TrustedKeys:
        """The trusted keys, which follow the directory."""
        return TrustedKeys(self, self)

    def at(self, index: int | None) -> int:
        """The threshold (`ledger.keys.threshold.Threshold`)."""
        return self._current().threshold.at(index)

    def __getitem__(self, role: str) -> tuple[PublicKey, ...]:
        return self._current().by_role[role]

    def __iter__(self) -> Iterator[str]:
        return iter(ROLES)

    def __len__(self) -> int:
        return len(ROLES)

    def _current(self) -> TrustedKeys:
        with self._lock:
            changed, now = self._directory_time(), self._clock()
            if changed != self._changed or now >= self._looked + _LOOK_SECONDS:
                self._changed, self._looked = changed, now
                self._look_again()
            return self._keys

    def _look_again(self) -> None:
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            self._reload()

    def _reload(self) -> None:
        try:
            self._keys = TrustedKeys.load(self._directory, retired=self._retired)
        except KeyFileError as error:
            _log.error("cannot read the trusted keys again, going on with those read before: %s", error)

    def _directory_time(self) -> int:
        try:
            return self._directory.stat().st_mtime_ns
        except OSError:
            return 0

    def _look(self) -> _Stamp:
        try:
            named = (path for path in sorted(self._directory.iterdir()) if path.suffix in (".pub", ".threshold"))
            files = [(path.name, path.stat()) for path in named]
        except OSError:
            return ()
        return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
