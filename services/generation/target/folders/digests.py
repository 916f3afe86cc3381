"""SHA-256 of large files, kept between starts: hashing 140 GB takes minutes, and they hardly ever change.

A file counts as unchanged while its path, size, inode and both of its times are. Somebody who can set all of those back
can write here too: that machine then serves something else than its identifier says, until the cache is removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.generation.durable_file import write_durably
from services.generation.target.canonical.kernels.cache_folder import user_cache

_log = logging.getLogger(__name__)

LARGE_BYTES = 64 * 1024 * 1024
"""Smaller files are hashed each time; it takes them less than looking into the cache is worth."""

_READ_BYTES = 4 * 1024 * 1024
_LOG_SECONDS = 5.0

Progress = Callable[[Path, int], None]
"""Takes a file and how many of its bytes have been hashed by now."""


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/kolm/digests.json`, or under `~/.cache`."""
    return user_cache() / "digests.json"


def logged() -> Progress:
    """A line in the log every few seconds."""
    said = time.monotonic()

    def say(path: Path, position: int) -> None:
        nonlocal said
        if time.monotonic() - said >= _LOG_SECONDS:
            said = time.monotonic()
            _log.info("hashing %s: %.1f of %.1f GB", path.name, position / 1e9, path.stat().st_size / 1e9)

    return say


@dataclass(frozen=True, slots=True)
class FileDigests:
    """Digests of files, those of large ones from `cache` where they are there. A cache that fails is none."""

    cache: Path = field(default_factory=default_cache)
    progress: Progress = field(default_factory=logged)

    def digest(self, path: Path) -> str:
        """`sha256:<hex>`. Raises OSError."""
        if path.stat().st_size < LARGE_BYTES:
            return self._hash(path)
        stamp, known = _stamp(path), self._known()
        kept = known.get(str(path.resolve()), {})
        if isinstance(kept, dict) and kept.get("stamp") == stamp and isinstance(kept.get("digest"), str):
            self.progress(path, path.stat().st_size)
            return str(kept["digest"])
        found = self._hash(path)
        if _stamp(path) == stamp:  # not written to meanwhile
            self._keep(known | {str(path.resolve()): {"stamp": stamp, "digest": found}})
        return found

    def _hash(self, path: Path) -> str:
        sha256, position = hashlib.sha256(), 0
        with path.open("rb") as file:
            while chunk := file.read(_READ_BYTES):
                sha256.update(chunk)
                position += len(chunk)
                self.progress(path, position)
        return "sha256:" + sha256.hexdigest()

    def _known(self) -> dict[str, Any]:
        try:
            known = json.loads(self.cache.read_bytes())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _keep(self, known: dict[str, Any]) -> None:
        try:
            write_durably(self.cache, json.dumps(known).encode())
        except OSError as error:
            _log.warning("cannot keep digests in %s: %s", self.cache, error)


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
