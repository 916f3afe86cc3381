"""Trusted public keys that follow their directory: a key published there is trusted from the next signature on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from ledger.errors import KeyFileError
from ledger.keys import ROLES, PublicKey, TrustedKeys

_log = logging.getLogger(__name__)

_Stamp = tuple[tuple[str, int, int], ...]


class TrustedDirectory(Mapping[str, tuple[PublicKey, ...]]):
    """Role to keys, for `TrustedKeys(TrustedDirectory(path))`. Safe between threads.

    Reads the directory again when a file's name, size or time has changed. While it cannot be read, the keys of the
    last good reading stay; the first reading raises KeyFileError. Whoever can write there decides who may sign.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._keys = TrustedKeys.load(directory)

    def __getitem__(self, role: str) -> tuple[PublicKey, ...]:
        return self._current().by_role[role]

    def __iter__(self) -> Iterator[str]:
        return iter(ROLES)

    def __len__(self) -> int:
        return len(ROLES)

    def _current(self) -> TrustedKeys:
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._reload()
            return self._keys

    def _reload(self) -> None:
        try:
            self._keys = TrustedKeys.load(self._directory)
        except KeyFileError as error:
            _log.error("cannot read the trusted keys again, going on with those read before: %s", error)

    def _look(self) -> _Stamp:
        try:
            files = [(path.name, path.stat()) for path in sorted(self._directory.glob("*.pub"))]
        except OSError:
            return ()
        return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)
