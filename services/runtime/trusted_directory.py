"""Trusted public keys of a directory: the keys in it at the start, and later ones that `TrustedDirectory` admits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ledger.documents.key_history import KeyHistory
from ledger.errors import KeyFileError
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.signer import Signer
from ledger.keys.trusted_keys import FixedThreshold, TrustedKeys
from services.runtime.process import Outage

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_ASK_SECONDS = 10.0

_Stamp = tuple[tuple[str, int, int], ...]

KeyEntries = Callable[[], Iterable[tuple[int, bytes]]]
"""Index and envelope of each key entry of the log, in order. Raises ConnectionError if the log cannot be asked."""


class TrustedDirectory(Mapping[str, tuple[PublicKey, ...]]):
    """The keys of each role and the operators' threshold; `trusted` follows them. Safe between threads.

    Write access to the folder alone grants no trust. A process trusts the keys that it finds at its start; later it
    adds the first keys of a role without keys, and a key that has replaced a trusted one by an entry of the log. Any
    other key is refused, and logged once. A key whose file was removed is no longer trusted. A threshold may rise, not
    fall.

    The directory is read again when a file's name, size or time has changed: immediately if a file was added or
    removed, which costs one system call for each signature, and within a second if a file was rewritten in place. While
    it cannot be read, the keys of the last good reading stay; the first reading raises KeyFileError.
    """

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        retired: bool = True,
        own: Signer | None = None,
        key_entries: KeyEntries = lambda: (),
    ) -> None:
        """`retired` also trusts keys that were replaced: readers of old entries need them, admission of new ones must
        not have them. `own` is trusted without a file. `key_entries` is asked only about a key that would be refused.
        """
        self._directory = directory
        self._retired = retired
        self._own = own
        self._key_entries = key_entries
        self._asking = Outage(_log, "ask the ledger whose keys were replaced", ConnectionError)
        self._reading = Outage(_log, "read the trusted keys again")
        self._clock = clock
        self._lock = threading.Lock()
        self._changed, self._looked = self._directory_time(), clock()
        self._stamp = self._look()
        self._keys = self._load()
        self._taken = {role: {*self._keys.keys(role)} for role in ROLES}
        self._asks_again: float | None = None
        self._logged: set[object] = set()

    def trusted(self) -> TrustedKeys:
        """The trusted keys, which follow the directory."""
        return TrustedKeys(self, self)

    def at(self, index: int | None) -> int:
        """The threshold (`ledger.keys.trusted_keys.Threshold`)."""
        return self.now().threshold.at(index)

    def __getitem__(self, role: str) -> tuple[PublicKey, ...]:
        return self.now().by_role[role]

    def __iter__(self) -> Iterator[str]:
        return iter(ROLES)

    def __len__(self) -> int:
        return len(ROLES)

    def now(self) -> TrustedKeys:
        """The keys and the threshold as they are now (`TrustedKeys.now`)."""
        with self._lock:
            changed, now = self._directory_time(), self._clock()
            if changed != self._changed or now >= self._looked + _LOOK_SECONDS:
                self._changed, self._looked = changed, now
                self._look_again(now)
            return self._keys

    def _look_again(self, now: float) -> None:
        stamp = self._look()
        waiting = self._asks_again is not None and now >= self._asks_again
        if stamp != self._stamp or waiting:
            self._stamp = stamp
            self._reload(now)

    def _reload(self, now: float) -> None:
        try:
            found = self._load()
        except KeyFileError as error:
            self._reading.failed(error)
            return
        self._reading.recovered()
        new = {role: [key for key in found.keys(role) if key not in self._taken[role]] for role in ROLES}
        for role in ROLES:
            if not self._taken[role]:
                self._taken[role].update(new.pop(role))
        refused = [(role, key) for role, keys in new.items() for key in keys]
        if refused:
            with self._asking:
                self._ask_the_log(refused)
        self._asks_again = now + _ASK_SECONDS if refused else None
        by_role = {role: tuple(key for key in found.keys(role) if key in self._taken[role]) for role in ROLES}
        self._keys = TrustedKeys(by_role, self._stricter(found))

    def _load(self) -> TrustedKeys:
        found, own = TrustedKeys.load(self._directory, retired=self._retired), self._own
        if own is None or own.public in found.keys(own.role):
            return found
        return replace(found, by_role={**found.by_role, own.role: (own.public, *found.keys(own.role))})

    def _ask_the_log(self, refused: Iterable[tuple[str, PublicKey]]) -> None:
        taken = TrustedKeys({role: tuple(self._taken[role]) for role in ROLES}, self._keys.threshold)
        rotations = KeyHistory.of(taken).following(self._key_entries()).rotations
        replacing = {(rotation.role, rotation.new) for rotation in rotations}
        for role, key in refused:
            if (role, key) in replacing:
                self._taken[role].add(key)
                _log.info("trusting the rotated key %s of role %s", key.key_id, role)
            else:
                self._log_once(
                    (role, key),
                    f"refused the key {key.key_id} of role {role} in {self._directory}: the role had a key, and no "
                    "entry of the log replaces that one by this. If a person has added it, start this service again",
                )

    def _stricter(self, found: TrustedKeys) -> FixedThreshold:
        """The threshold of the directory, unless it asks for fewer operators somewhere."""
        old, new = self._keys.threshold, found.threshold
        assert isinstance(old, FixedThreshold)
        assert isinstance(new, FixedThreshold)
        starts = [start for start, _ in (*old.steps, *new.steps)]
        if all(new.at(start) >= old.at(start) for start in starts):
            return new
        self._log_once(new, f"the threshold in {self._directory} asks for fewer operators: from the next start on")
        return old

    def _log_once(self, what: object, message: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            _log.warning(message)

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
