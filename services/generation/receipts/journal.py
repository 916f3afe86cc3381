"""The journal of receipts on their way to the ledger: one append-only file, with one fsync for a group of records.

    <folder>/journal       records: CRC-32 of the rest, length of the payload, length of the id, kind; id, payload
    <folder>/*.damaged     a journal with bytes that are not records, kept for inspection

| kind | meaning | payload |
|---|---|---|
| PROMISED | a promise of this receipt is about to leave the server | the receipt as it is without an output |
| WAITING | the receipt, in place of the promised receipt of its id | the receipt |
| SETTLED | the ledger has it | none |

Payloads are kolm.ledger.v1.AppendEntryRequest. They contain prompts and outputs: the folder is 0700, the file 0600. If
nothing is open, the file is empty; it is rewritten if most of it is settled, and at the latest some seconds after a
record was settled. A crash leaves

* before `keep` returns: some of its records, each whole, the last one perhaps cut off, which is dropped. No caller has
  been answered yet; the records go to the log, where an additional receipt is harmless;
* after PROMISED: the next start sends the receipt without an output, which keeps the promise;
* after WAITING: the next start sends the receipt, and nothing else of its id;
* after `settle`, which is not synced: at worst the next start sends a receipt again. The ledger answers with the index
  of the first, or refuses a receipt without an output if it has the real receipt;
* while the file is rewritten: the old or the new file, with the same open records.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import struct
import time
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock

from google.protobuf.message import DecodeError

from kolm.ledger.v1 import ledger_pb2
from ledger.durable_file import make_folder, remove_drafts, write_durably

_log = logging.getLogger(__name__)

JOURNAL = "journal"
"""The name of the file."""

_HEADER = struct.Struct("<IIHB")
_MOST_SETTLED = 4 << 20  # bytes of settled records above which the file is rewritten, if they are most of it
_SETTLED_SECONDS = 5.0  # after which it is rewritten without them in any case


class Kind(IntEnum):
    PROMISED = 1
    WAITING = 2
    SETTLED = 3


_KINDS = frozenset(Kind)


@dataclass(frozen=True, slots=True)
class Record:
    kind: Kind
    receipt_id: str
    payload: bytes = b""

    def to_bytes(self) -> bytes:
        name = self.receipt_id.encode()
        rest = _HEADER.pack(0, len(self.payload), len(name), self.kind)[4:] + name + self.payload
        return zlib.crc32(rest).to_bytes(4, "little") + rest


class Journal:
    """The journal in one folder. Used on one event loop; a thread writes one group of records after another."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError if the folder cannot be made."""
        make_folder(folder, 0o700)
        self._path = folder / JOURNAL
        self._waiting: list[tuple[list[Record], asyncio.Future[None] | None]] = []
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, "journal")  # work for callers must not delay a promise
        self._writing = Lock()  # the thread may outlive the task that waits for it
        # Used by the writing thread alone, from here on.
        self._file: int | None = None
        self._end, self._torn = 0, False
        self._open: dict[str, Record] = {}  # open records, the oldest first
        self._stale_since: float | None = None  # when the first record that is not open was settled or replaced

    def recover(self) -> dict[str, ledger_pb2.AppendEntryRequest]:
        """Open receipts of an earlier process by id, the oldest first; receipts that were only promised come last.

        Blocks. Call it once, before the other methods. Needs no free space. Raises OSError.
        """
        remove_drafts(self._path.parent)
        data = self._path.read_bytes() if self._path.exists() else b""
        records, is_whole = read_records(data)
        left = open_records(records)
        kept: dict[str, ledger_pb2.AppendEntryRequest] = {}
        for record in sorted(left, key=lambda record: record.kind == Kind.PROMISED):
            try:
                kept[record.receipt_id] = ledger_pb2.AppendEntryRequest.FromString(record.payload)
            except DecodeError:
                is_whole = False
        try:
            if not is_whole:
                aside = self._aside()
                os.link(self._path, aside)
                _log.error(
                    "setting aside a damaged journal: %s has bytes that are not records, kept as %s", self._path, aside
                )
            self._rewrite([record for record in left if record.receipt_id in kept])
        except OSError as error:
            _log.warning("using %s as it is: rewriting failed: %s", self._path, error)
            self._use()
        return kept

    def _use(self) -> None:
        """Open the existing file for appending, if the disk has no room for a new file. Raises OSError."""
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        records, is_whole = read_records(data)
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._end = sum(map(_size_of, records)) if is_whole else len(data)
        self._open = {record.receipt_id: record for record in open_records(records)}
        self._torn = True  # remove a record that a crash has cut off

    def _aside(self) -> Path:
        """An unused file name."""
        return next(path for n in count() if not (path := self._path.with_suffix(f".{n}.damaged")).exists())

    async def keep(self, kind: Kind, requests: Mapping[str, ledger_pb2.AppendEntryRequest]) -> None:
        """Write records by receipt id; returns when all are on disk. Raises OSError, and then keeps none of them."""
        records = [Record(kind, name, request.SerializeToString()) for name, request in requests.items()]
        done = asyncio.get_running_loop().create_future()
        self._put(records, done)
        await done

    def settle(self, receipt_id: str) -> None:
        """Mark a receipt as delivered. Not synced: a repeated delivery is harmless."""
        self._put([Record(Kind.SETTLED, receipt_id)], None)

    async def written(self) -> None:
        """Wait until all records given before have been written, or their write has failed."""
        while self._writer is not None:
            await asyncio.shield(self._writer)

    async def close(self) -> None:
        """Wait as `written` does, and remove what is settled. Nothing else may be called later: the next start of this
        process may use the folder.
        """
        await self.written()
        if self._stale_since is not None:
            self._stale_since = -math.inf
            self._look_again()
            await self.written()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.shutdown(wait=False)

    def _put(self, records: list[Record], done: asyncio.Future[None] | None) -> None:
        self._waiting.append((records, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                waiting = [done for _, done in group if done is not None]
                fault: Exception | None = None
                try:
                    records = [record for records, _ in group for record in records]
                    write = partial(self._write, records, sync=bool(waiting))
                    await asyncio.get_running_loop().run_in_executor(self._thread, write)
                except Exception as error:  # raised in every waiting caller
                    fault = error
                for done in waiting:
                    if not done.done() and fault is not None:
                        done.set_exception(fault)
                    elif not done.done():
                        done.set_result(None)
            if self._stale_since is not None and self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_SETTLED_SECONDS, self._look_again)
        except asyncio.CancelledError:  # while a thread may still write: nothing is to begin beside it
            if self._timer is not None:
                self._timer.cancel()
            raise
        finally:
            self._writer = None

    def _look_again(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._put([], None)

    def _write(self, records: list[Record], *, sync: bool) -> None:
        with self._writing:
            self._write_alone(records, sync=sync)

    def _write_alone(self, records: list[Record], *, sync: bool) -> None:
        data = _bytes_of(records)
        try:
            file, written = self._opened(), 0
            while written < len(data):
                written += os.pwrite(file, data[written:], self._end + written)
            if sync:
                os.fsync(file)
        except OSError:
            self._torn = True
            _apply(self._open, [record for record in records if record.kind == Kind.SETTLED])  # which may make room
            with suppress(OSError):
                if self._file is not None:
                    self._cut(self._file)
                    self._forget_settled(self._file)
            raise
        self._end += len(data)
        _apply(self._open, records)
        with suppress(OSError):  # settled records stay a while longer
            self._forget_settled(file)

    def _opened(self) -> int:
        """The open file, written again with the open records if it was deleted or replaced."""
        if self._file is not None and not _is_at(self._file, self._path):
            replaced, self._file = self._file, None
            os.close(replaced)
        if self._file is not None:
            if self._torn:
                self._cut(self._file)
            return self._file
        make_folder(self._path.parent, 0o700)
        left = list(self._open.values())
        if self._path.exists() and self._path.read_bytes() != _bytes_of(left):  # not what this process has written
            aside = self._aside()
            self._path.rename(aside)
            _log.error("setting aside another file in the place of the journal: %s is now %s", self._path, aside)
        return self._rewrite(left)

    def _cut(self, file: int) -> None:
        """Remove the bytes of a failed write."""
        os.ftruncate(file, self._end)
        self._torn = False

    def _forget_settled(self, file: int) -> None:
        if not self._open:
            os.ftruncate(file, 0)
            self._end, self._stale_since = 0, None
            return
        size, now = sum(map(_size_of, self._open.values())), time.monotonic()
        if self._end == size:
            return
        if self._stale_since is None:
            self._stale_since = now
        if self._end - size > max(_MOST_SETTLED, size) or now - self._stale_since >= _SETTLED_SECONDS:
            self._stale_since = now  # after a failure it is tried again as much later
            self._rewrite(list(self._open.values()))
            self._stale_since = None

    def _rewrite(self, records: list[Record]) -> int:
        """Rewrite the file with these records only, and return it open. Raises OSError, and then the old one stays."""
        data = _bytes_of(records)
        try:
            write_durably(self._path, data)
        except OSError:
            if self._file is None or _is_at(self._file, self._path):
                raise
            # The new file has the name already; only a power cut could bring back the old one.
        old, file = self._file, os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._file, self._end, self._torn = file, len(data), False
        self._open = {record.receipt_id: record for record in records}
        if old is not None:
            os.close(old)
        return file


def read_records(data: bytes) -> tuple[list[Record], bool]:
    """The records of a journal, and whether there is nothing else but an end cut off by a crash.

    Bytes that are not a record are skipped.
    """
    found, at, is_whole = list[Record](), 0, True
    while at < len(data):
        record = _record_at(data, at)
        if record is not None:
            found.append(record)
            at += _size_of(record)
            continue
        later = next((place for place in range(at + 1, len(data)) if _record_at(data, place) is not None), None)
        if later is None:
            return found, is_whole and _is_cut_off(data, at)
        at, is_whole = later, False
    return found, is_whole


def _record_at(data: bytes, at: int) -> Record | None:
    if at + _HEADER.size > len(data):
        return None
    crc, size, name_size, kind = _HEADER.unpack_from(data, at)
    body, end = at + _HEADER.size, at + _HEADER.size + name_size + size
    if kind not in _KINDS or end > len(data) or zlib.crc32(data[at + 4 : end]) != crc:
        return None
    return Record(Kind(kind), data[body : body + name_size].decode(), data[body + name_size : end])


def _is_cut_off(data: bytes, at: int) -> bool:
    """Whether the rest is the beginning of a record or zeros, as a crash during a write leaves it."""
    rest = data[at:].rstrip(b"\0")
    if len(rest) < _HEADER.size:
        return True
    _, size, name_size, kind = _HEADER.unpack_from(rest)
    return kind in _KINDS and _HEADER.size + name_size + size > len(rest)


def _bytes_of(records: Iterable[Record]) -> bytes:
    return b"".join(record.to_bytes() for record in records)


def _size_of(record: Record) -> int:
    return _HEADER.size + len(record.receipt_id.encode()) + len(record.payload)


def open_records(records: list[Record]) -> list[Record]:
    """Open records, the oldest first."""
    left: dict[str, Record] = {}
    _apply(left, records)
    return list(left.values())


def _apply(left: dict[str, Record], records: list[Record]) -> None:
    for record in records:
        known = left.pop(record.receipt_id, None)
        if record.kind == Kind.PROMISED and known is not None and known.kind == Kind.WAITING:
            left[record.receipt_id] = known
        elif record.kind != Kind.SETTLED:
            left[record.receipt_id] = record


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False
