"""Blocks of the cache on disk: computed prefixes are available again after a restart.

    <folder>/<SHA-256 of the tenant>/<digest>            keys and values of a block
    <folder>/<SHA-256 of the tenant>/<digest>-1-14-27    float32 features of its tokens, of these layers

A digest names a block by everything that determines its bytes: model, profile, code, tenant, adapter, and every token
up to its end. A file begins with a SHA-256 of its key and its content. A torn, damaged or moved file is deleted, and
the block is computed. So files are written without fsync: a crash leaves whole files, a power cut perhaps torn files.

Prompts can be recovered from the files: folders are 0700, files 0600.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK

_log = logging.getLogger(__name__)

Owner = tuple[str | None, str | None]  # tenant and adapter, which share blocks with no others
Tokens = tuple[int, ...]

_DIGEST = 32  # bytes
_TENANT = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[0-9a-f]{64}(-\d+)*")
_DRAFT = ".draft"
_SKEW = 3600 * 10**9  # ns: an erasure may have the time of another clock, or of the beginning of a request
_ROOM = 0.05  # share of the size limit that is freed at a time, since all files are sorted for it
_MOST_WAITING = 1 << 26  # bytes waiting to be written, and bytes read ahead for each sequence
_PATIENCE = 0.1  # seconds that a sequence waits at least for a block on disk
_WORTH = 0.5  # share of the time to compute a block that reading it may take
_NEWEST = 0.2  # weight of the newest block in the average read time
_LOOK = 0.005  # seconds that an otherwise idle engine waits for the disk


@dataclass(slots=True)
class _File:
    size: int
    written: int  # ns since 1970, as `used`
    used: int


class PrefixFolder:
    """Files by key, `<tenant's folder>/<name>`, up to a number of bytes; the least recently used are deleted first.

    For any thread of one process. Other files in the folder are left alone.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Raises OSError if the folder is not writable."""
        self._path, self.most_bytes = path, most_bytes
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self.erasures = 0  # so far; clocks may be set back
        self.bytes = 0
        self.counts = Counter[str]()  # blocks and features: read, written, damaged, failed, dropped
        with tempfile.TemporaryFile(dir=path):
            pass
        for tenant in path.iterdir():
            if _TENANT.fullmatch(tenant.name) and tenant.is_dir():
                self._find(tenant)
        self._make_room(0)

    def _find(self, tenant: Path) -> None:
        """Add the files of earlier processes."""
        for file in tenant.iterdir():
            if file.name.endswith(_DRAFT):
                file.unlink()
            elif _NAME.fullmatch(file.name) and file.is_file():
                found = file.stat()
                self._add(f"{tenant.name}/{file.name}", _File(found.st_size, found.st_mtime_ns, found.st_atime_ns))

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def read(self, key: str) -> memoryview | None:
        """The bytes that were written; None if they are missing or damaged."""
        try:
            data = (self._path / key).read_bytes()
        except OSError as error:
            self._lost(key, "failed", str(error))
            return None
        content = memoryview(data)[_DIGEST:]
        if data[:_DIGEST] != _checksum(key, content):
            self._lost(key, "damaged", "its bytes have changed")
            return None
        self.count("read")
        return content

    def _lost(self, key: str, outcome: str, why: str) -> None:
        with self._lock:
            known = key in self._files
            self._delete(key)
        if known:  # not evicted meanwhile
            self.count(outcome)
            _log.warning("dropping %s from the prefix cache: %s", self._path / key, why)

    def write(self, key: str, data: bytes, used: int, made: int, erasures: int) -> None:
        """Write `data`, made at `made` after so many `erasures`, unless there was one since. Times are ns. Raises
        OSError.
        """
        path, draft = self._path / key, self._path / f"{key}{_DRAFT}"
        size = _DIGEST + len(data)
        if size > self.most_bytes:
            return
        with self._lock:
            self._make_room(size)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(_checksum(key, data))
                file.write(data)
            os.utime(draft, ns=(used, made))
            with self._lock:
                if erasures == self.erasures:
                    draft.replace(path)
                    self._add(key, _File(size, made, used))
                    self.counts["written"] += 1
        finally:
            draft.unlink(missing_ok=True)

    def use(self, key: str, used: int) -> None:
        """Note a use of the block at `used`, from disk or from memory."""
        if (file := self._files.get(key)) is not None:
            file.used = max(file.used, used)

    def erase(self, until: float, tenant: str | None = None, but: Collection[str] = ()) -> None:
        """Delete the files written until `until`, Unix time, plus a margin: of a tenant, or of all tenants except
        `but`.
        """
        last, own, spared = int(until * 1e9) + _SKEW, folder_of(tenant), {folder_of(each) for each in but}
        with self._lock:
            self.erasures += 1
            for key in [key for key, file in self._files.items() if file.written <= last]:
                folder = key.partition("/")[0]
                if folder == own if tenant is not None else folder not in spared:
                    self._delete(key)

    def close(self) -> None:
        """Store the times of last use for the next process."""
        for key, file in self._files.items():
            with suppress(OSError):
                os.utime(self._path / key, ns=(file.used, file.written))

    def count(self, outcome: str) -> None:
        with self._lock:
            self.counts[outcome] += 1

    def _make_room(self, size: int) -> None:
        if self.bytes + size <= self.most_bytes:
            return
        for key in sorted(self._files, key=lambda key: self._files[key].used):
            if self.bytes + size <= (1 - _ROOM) * self.most_bytes:
                break
            self._delete(key)

    def _add(self, key: str, file: _File) -> None:
        before = self._files.get(key)
        self.bytes += file.size - (before.size if before else 0)
        self._files[key] = file

    def _delete(self, key: str) -> None:
        file = self._files.pop(key, None)
        self.bytes -= file.size if file else 0
        try:
            (self._path / key).unlink(missing_ok=True)
        except OSError as error:
            _log.error("deleting %s of the prefix cache failed: %s", self._path / key, error)


def folder_of(tenant: str | None) -> str:
    return hashlib.sha256((tenant or "").encode()).hexdigest()


def _checksum(key: str, data: bytes | memoryview) -> bytes:
    checksum = hashlib.sha256(key.encode())
    checksum.update(data)
    return checksum.digest()


def next_digest(digest: bytes, tokens: Tokens) -> bytes:
    """The digest of a block with these tokens after the block of `digest`."""
    return hashlib.sha256(digest + np.array(tokens, "<u4").tobytes()).digest()


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """Keys and values of a block, and features of its tokens if they were requested."""

    content: memoryview
    features: Float32 | None  # [BLOCK, layers * hidden]


class Reading:
    """Blocks that are read for one sequence, in their order. Used by the engine's thread."""

    def __init__(
        self, digests: Iterable[bytes], load: Callable[[bytes], Future[KeptBlock | None]], ahead: int, patience: float
    ) -> None:
        """`ahead`: blocks that are read ahead; `patience`: seconds that waiting for all blocks is worth."""
        self._left, self._load, self._ahead, self.patience = deque(digests), load, ahead, patience
        self._coming: deque[Future[KeptBlock | None]] = deque()
        self._ask()

    def _ask(self) -> None:
        while self._left and len(self._coming) < self._ahead:
            self._coming.append(self._load(self._left.popleft()))

    @property
    def next(self) -> Future[KeptBlock | None] | None:
        """The next block, None after the last; its result is None if it is missing or damaged."""
        return self._coming[0] if self._coming else None

    def advance(self) -> None:
        """Go on to the block after the next one, which was taken or is known from memory."""
        if self._coming:
            self._coming.popleft().cancel()
        self._ask()

    def cancel(self) -> None:
        self._left.clear()
        while self._coming:
            self.advance()


class PrefixDisk:
    """Reads and writes the blocks of one model on two threads, which the calling engine's thread does not wait for."""

    def __init__(
        self, folder: PrefixFolder, identity: Collection[str], block_bytes: int, seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`identity`: determines all bits of a computation; `block_bytes`: size of a block; `seconds`: to compute a
        block.
        """
        self.folder, self.clock = folder, clock
        self._identity, self._ahead = list(identity), max(2, _MOST_WAITING // block_bytes)
        self._seconds, self._pace = seconds, 0.0
        self._reader = ThreadPoolExecutor(1, "prefix-reader")
        self._writer = ThreadPoolExecutor(1, "prefix-writer")
        self._writing: dict[str, int] = {}  # bytes by key; used by the engine's thread and the writer
        self._complained = False

    def first_digest(self, owner: Owner) -> bytes:
        """The digest that the first block follows."""
        named = ["kolm.prefix.v1", self._identity, BLOCK, *owner]
        return hashlib.sha256(json.dumps(named).encode()).digest()

    def keep(self, owner: Owner, digest: bytes, content: Callable[[], bytes], layers: tuple[int, ...],
             features: Float32 | None, used: int) -> None:  # fmt: skip
        """Write missing files of a block later; skip them if too much waits for the disk."""
        files = _files(owner, digest, layers)
        self._submit(files.content, content, used)
        if files.features is not None and features is not None:
            self._submit(files.features, features.tobytes, used)

    def _submit(self, key: str, content: Callable[[], bytes], used: int) -> None:
        if key in self.folder or key in self._writing:
            return
        if sum(tuple(self._writing.values())) > _MOST_WAITING:
            self.folder.count("dropped")
            return
        erasures, data = self.folder.erasures, content()
        self._writing[key] = len(data)
        self._writer.submit(self._write, key, data, used, time.time_ns(), erasures)

    def _write(self, key: str, data: bytes, used: int, made: int, erasures: int) -> None:
        try:
            self.folder.write(key, data, used, made, erasures)
            self._complained = False
        except OSError as error:
            self.folder.count("failed")
            if not self._complained:
                _log.warning("writing to the prefix cache failed: %s", error)
            self._complained = True
        finally:
            del self._writing[key]

    def use(self, owner: Owner, digest: bytes, layers: tuple[int, ...], used: int) -> None:
        """Note that a sequence has taken a block over from memory."""
        for key in _files(owner, digest, layers).keys:
            self.folder.use(key, used)

    def read(self, owner: Owner, digest: bytes, tokens: Tokens, layers: tuple[int, ...], used: int) -> Reading | None:
        """Begin to read the blocks of `tokens` after `digest`, without the last token; None if the first is not on
        disk.
        """
        found = list[bytes]()
        for first in range(0, len(tokens) - BLOCK, BLOCK):
            digest = next_digest(digest, tokens[first : first + BLOCK])
            if not all(key in self.folder for key in _files(owner, digest, layers).keys):
                break
            found.append(digest)
        if not found:
            return None
        for number, each in enumerate(found):
            self.use(owner, each, layers, used - number * BLOCK)
        patience = max(_PATIENCE, _WORTH * self._seconds * len(found))
        return Reading(found, lambda each: self._reader.submit(self._load, owner, each, layers), self._ahead, patience)

    def allow_reading(self) -> bool:
        """Returns whether blocks are read faster than computed. Each refusal lowers the average, so that a slow disk is
        tried again after some time.
        """
        if self._pace <= _WORTH * self._seconds:
            return True
        self._pace *= 1.0 - _NEWEST
        return False

    def _load(self, owner: Owner, digest: bytes, layers: tuple[int, ...]) -> KeptBlock | None:
        started, files = self.clock(), _files(owner, digest, layers)
        content = self.folder.read(files.content)
        features = None if files.features is None else self.folder.read(files.features)
        self._pace += _NEWEST * (self.clock() - started - self._pace)
        if content is None or (files.features is not None and features is None):
            return None
        return KeptBlock(content, None if features is None else np.frombuffer(features, np.float32).reshape(BLOCK, -1))

    @staticmethod
    def wait(readings: Iterable[Reading]) -> None:
        """Wait until a block of one of them was read, some milliseconds at most."""
        coming = [each.next for each in readings]
        wait([each for each in coming if each is not None], _LOOK, FIRST_COMPLETED)

    def close(self) -> None:
        """Write the waiting blocks; readings are cancelled."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown()


class _Files(NamedTuple):
    """The keys of a block's files; `features` is None without layers."""

    content: str
    features: str | None

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.content,) if self.features is None else (self.content, self.features)


def _files(owner: Owner, digest: bytes, layers: tuple[int, ...]) -> _Files:
    content = f"{folder_of(owner[0])}/{digest.hex()}"
    return _Files(content, "-".join([content, *map(str, layers)]) if layers else None)
