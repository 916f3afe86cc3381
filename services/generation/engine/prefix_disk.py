"""Blocks of the cache on the disk: a prefix that was computed once is there again after a restart.

    <folder>/<SHA-256 of the tenant>/<digest>            what the target holds of a block
    <folder>/<SHA-256 of the tenant>/<digest>-1-14-27    features of its tokens, float32, of these layers

A digest names a block by all that its bytes follow from: model, profile, code, tenant, adapter, and every token up to
its end. A file begins with a SHA-256 of its place and of the rest of it. One that is torn, damaged or another's is
deleted, and the block is computed. So files are written without waiting for the disk: a crash leaves whole ones, a
power cut perhaps torn ones.

Prompts can be told from what is in the files: folders are 0700, files 0600.
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

import numpy as np

from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK

_log = logging.getLogger(__name__)

Owner = tuple[str | None, str | None]  # tenant and adapter: others share nothing with it
Tokens = tuple[int, ...]

_DIGEST = 32  # bytes
_TENANT = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[0-9a-f]{64}(-\d+)*")
_DRAFT = ".draft"
_SKEW = 3600 * 10**9  # ns: an erasure may have the time of another clock, or that at which a request began
_ROOM = 0.05  # of the bound is made free at a time: all files are looked at for it


@dataclass(slots=True)
class _File:
    size: int
    written: int  # ns since 1970, as `used`
    used: int


class PrefixFolder:
    """Files by key, `<tenant's folder>/<name>`, up to a number of bytes; the longest unused are deleted first.

    From any thread, of one process. Files that are not of this form are left alone.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Raises OSError where the folder cannot be written to."""
        self._path, self.most_bytes = path, most_bytes
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self._erased = 0  # when something was erased last
        self.bytes = 0
        self.counts = Counter[str]()  # blocks and features: read, written, damaged, failed, dropped
        with tempfile.TemporaryFile(dir=path):
            pass
        for tenant in path.iterdir():
            if _TENANT.fullmatch(tenant.name) and tenant.is_dir():
                self._find(tenant)
        self._make_room(0)

    def _find(self, tenant: Path) -> None:
        """What earlier processes have left."""
        for file in tenant.iterdir():
            if file.name.endswith(_DRAFT):
                file.unlink()
            elif _NAME.fullmatch(file.name) and file.is_file():
                found = file.stat()
                self._add(f"{tenant.name}/{file.name}", _File(found.st_size, found.st_mtime_ns, found.st_atime_ns))

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def read(self, key: str) -> memoryview | None:
        """The bytes that were written; None where they are not there any more, or others are."""
        try:
            data = (self._path / key).read_bytes()
        except OSError as error:
            self._lost(key, "failed", str(error))
            return None
        content = memoryview(data)[_DIGEST:]
        if data[:_DIGEST] != _checksum(key, content):
            self._lost(key, "damaged", "its bytes are not those that were written")
            return None
        self.count("read")
        return content

    def _lost(self, key: str, why: str, said: str) -> None:
        with self._lock:
            known = key in self._files
            self._delete(key)
        if known:  # not deleted meanwhile, to make room
            self.count(why)
            _log.warning("the prefix cache goes on without %s: %s", self._path / key, said)

    def write(self, key: str, data: bytes, used: int, made: int) -> None:
        """Keep `data`, which was made at `made`, unless something was erased since. Raises OSError."""
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
                if made > self._erased:
                    draft.replace(path)
                    self._add(key, _File(size, made, used))
                    self.counts["written"] += 1
        finally:
            draft.unlink(missing_ok=True)

    def use(self, key: str, used: int) -> None:
        """Somebody has used what is there at `used`, be it from memory."""
        if (file := self._files.get(key)) is not None:
            file.used = max(file.used, used)

    def erase(self, until: float, tenant: str | None = None, but: Collection[str] = ()) -> None:
        """Delete what was written until then, Unix time, and some time after: of a tenant, or of all but some."""
        last, own, spared = int(until * 1e9) + _SKEW, folder_of(tenant), {folder_of(each) for each in but}
        with self._lock:
            self._erased = time.time_ns()
            for key in [key for key, file in self._files.items() if file.written <= last]:
                folder = key.partition("/")[0]
                if folder == own if tenant is not None else folder not in spared:
                    self._delete(key)

    def close(self) -> None:
        """Leave it as the next process should find it: with the times of last use."""
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
            _log.error("cannot delete %s of the prefix cache: %s", self._path / key, error)


def folder_of(tenant: str | None) -> str:
    return hashlib.sha256((tenant or "").encode()).hexdigest()


def _checksum(key: str, data: bytes | memoryview) -> bytes:
    checksum = hashlib.sha256(key.encode())
    checksum.update(data)
    return checksum.digest()


def next_digest(digest: bytes, tokens: Tokens) -> bytes:
    """The digest of a block with these tokens behind the block of `digest`."""
    return hashlib.sha256(digest + np.array(tokens, "<u4").tobytes()).digest()


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """What the target holds of a block, and features of its tokens where they were asked for."""

    content: memoryview
    features: Float32 | None  # [BLOCK, layers * hidden]


_MOST_WAITING = 1 << 26  # bytes on their way to the disk, and of each sequence on their way from it
_PATIENCE = 0.1  # seconds that a sequence waits at least for what it was told to be there
_WORTH = 0.5  # of the time that it takes to compute a block, that it may take to read it
_NEWEST = 0.2  # weight of the newest block in the time that reading takes
_LOOK = 0.005  # seconds that the engine waits for the disk where it has nothing else to do


class Reading:
    """Blocks on their way to one sequence, in their order. Used by the engine's thread."""

    def __init__(
        self, digests: Iterable[bytes], load: Callable[[bytes], Future[KeptBlock | None]], ahead: int, patience: float
    ) -> None:
        """`ahead` blocks are read before they are taken; `patience`: seconds that are worth waiting for them all."""
        self._left, self._load, self._ahead, self.patience = deque(digests), load, ahead, patience
        self._coming: deque[Future[KeptBlock | None]] = deque()
        self._ask()

    def _ask(self) -> None:
        while self._left and len(self._coming) < self._ahead:
            self._coming.append(self._load(self._left.popleft()))

    @property
    def next(self) -> Future[KeptBlock | None] | None:
        """The next block, None after the last; its result is None where it turned out not to be there."""
        return self._coming[0] if self._coming else None

    def advance(self) -> None:
        """The next block was taken, or came from elsewhere."""
        if self._coming:
            self._coming.popleft().cancel()
        self._ask()

    def cancel(self) -> None:
        self._left.clear()
        while self._coming:
            self.advance()


class PrefixDisk:
    """Reads and writes the blocks of one model on two threads. The engine's thread, which calls, waits for neither."""

    def __init__(
        self, folder: PrefixFolder, identity: Collection[str], block_bytes: int, seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`identity` says what computes, to the bit; `block_bytes`: of a block in the target; `seconds`: that it takes
        to compute one.
        """
        self.folder, self.clock = folder, clock
        self._identity, self._ahead = list(identity), max(2, _MOST_WAITING // block_bytes)
        self._seconds, self._pace = seconds, 0.0
        self._reader = ThreadPoolExecutor(1, "prefix-reader")
        self._writer = ThreadPoolExecutor(1, "prefix-writer")
        self._writing: dict[str, int] = {}  # bytes by key; of the engine's thread and the writer's
        self._complained = False

    def first_digest(self, owner: Owner) -> bytes:
        """The digest before the first block."""
        named = ["kolm.prefix.v1", self._identity, BLOCK, *owner]
        return hashlib.sha256(json.dumps(named).encode()).digest()

    def keep(self, owner: Owner, digest: bytes, content: Callable[[], bytes], layers: tuple[int, ...],
             features: Float32 | None, used: int) -> None:  # fmt: skip
        """Write what is not there yet, sooner or later; not at all where the disk is too slow."""
        if features is None:
            layers, makes = (), [content]
        else:
            makes = [content, features.tobytes]
        for key, make in zip(_keys(owner, digest, layers), makes, strict=True):
            if key in self.folder or key in self._writing:
                continue
            if sum(tuple(self._writing.values())) > _MOST_WAITING:
                self.folder.count("dropped")
                continue
            data = make()
            self._writing[key] = len(data)
            self._writer.submit(self._write, key, data, used, time.time_ns())

    def _write(self, key: str, data: bytes, used: int, made: int) -> None:
        try:
            self.folder.write(key, data, used, made)
            self._complained = False
        except OSError as error:
            self.folder.count("failed")
            if not self._complained:
                _log.warning("the prefix cache cannot write: %s", error)
            self._complained = True
        finally:
            del self._writing[key]

    def use(self, owner: Owner, digest: bytes, layers: tuple[int, ...], used: int) -> None:
        """A sequence has taken a block over from memory."""
        for key in _keys(owner, digest, layers):
            self.folder.use(key, used)

    def read(self, owner: Owner, digest: bytes, tokens: Tokens, layers: tuple[int, ...], used: int) -> Reading | None:
        """Begin to read blocks of `tokens`, which stand behind `digest`, but not the last of them; None where there are
        no such blocks.
        """
        found = list[bytes]()
        for first in range(0, len(tokens) - BLOCK, BLOCK):
            digest = next_digest(digest, tokens[first : first + BLOCK])
            if not all(key in self.folder for key in _keys(owner, digest, layers)):
                break
            found.append(digest)
        if not found:
            return None
        for number, each in enumerate(found):
            self.use(owner, each, layers, used - number * BLOCK)
        patience = max(_PATIENCE, _WORTH * self._seconds * len(found))
        return Reading(found, lambda each: self._reader.submit(self._load, owner, each, layers), self._ahead, patience)

    def is_worth_a_look(self) -> bool:
        """Whether blocks are read sooner than they are computed; a disk that was slow is tried again in a while."""
        if self._pace <= _WORTH * self._seconds:
            return True
        self._pace *= 1.0 - _NEWEST
        return False

    def _load(self, owner: Owner, digest: bytes, layers: tuple[int, ...]) -> KeptBlock | None:
        started = self.clock()
        parts = [part for key in _keys(owner, digest, layers) if (part := self.folder.read(key)) is not None]
        self._pace += _NEWEST * (self.clock() - started - self._pace)
        if len(parts) < len(_keys(owner, digest, layers)):
            return None
        return KeptBlock(parts[0], np.frombuffer(parts[1], np.float32).reshape(BLOCK, -1) if layers else None)

    @staticmethod
    def wait(readings: Iterable[Reading]) -> None:
        """Until one of them has something, some milliseconds at most."""
        coming = [each.next for each in readings]
        wait([each for each in coming if each is not None], _LOOK, FIRST_COMPLETED)

    def close(self) -> None:
        """Blocks that wait are written, those that are being read are not waited for."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown()


def _keys(owner: Owner, digest: bytes, layers: tuple[int, ...]) -> list[str]:
    """The files of a block: what the target holds of it and, if there are layers, their features."""
    content = f"{folder_of(owner[0])}/{digest.hex()}"
    return [content, "-".join([content, *map(str, layers)])] if layers else [content]
