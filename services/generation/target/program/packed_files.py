"""Packed weights on disk: one file for a base on a kind of machine, mapped by all processes that compute with it.

    <folder>/<digest of base and machine>/<version of the packing>-<SHA-256 of the file>

A file holds the page-aligned panels of every matrix, a JSON table with matrices, base and machine, and the table's size
as a little-endian u64. It is immutable: it is written under a temporary name, synced, then renamed. Maps of deleted
files stay valid. A file whose digest differs is replaced.

Anyone who can write to the folder can change the weights that a model uses, as with the folder of kernels.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from ledger.durable_file import move_durably, remove_drafts
from ledger.encoding.text_forms import cid_of_json
from services.generation.state_folder import await_empty, one_at_a_time
from services.generation.target.arrays import Bytes, Int64
from services.generation.target.files.stored_tensor import StoredTensor
from services.generation.target.identity import LARGE_BYTES, FileDigests
from services.generation.target.kernels.compilation import user_cache
from services.generation.target.kernels.machine import give_way, this_machine
from services.generation.target.kernels.storages import PANEL, STORAGES, padded
from services.generation.target.program.matrices import Pack, pack_tensors
from services.generation.target.program.packing import PackedWeights, Packing

_log = logging.getLogger(__name__)

_Identity = dict[str, str]  # base and machine
_SPARE_BYTES = 1 << 30  # of disk space, left free for other programs
_TEMPORARY = ".draft-"  # the prefix of files that `remove_drafts` deletes
_SIZE = 8  # bytes of the table's size
_PACKAGE = Path(__file__).parents[1]
_SOURCES = (
    "files/*.py",
    "kernels/storages.py",
    "kernels/packing.py",
    "program/*.py",
    "weights.py",
    "families.py",
    "family.py",
    "config/*.py",
)


@dataclass(frozen=True, slots=True)
class PackedFolder:
    """A folder of packed weights of at most `most_bytes` (0 keeps none). The least recently used are deleted first."""

    most_bytes: int
    path: Path = field(default_factory=lambda: user_cache() / "packed")
    digests: FileDigests = field(default_factory=FileDigests)

    @contextmanager
    def packing(self, base_cid: str, size: int) -> Iterator[Pack]:
        """Yield a function that packs a matrix. The block packs all matrices of the base, about `size` bytes, with it.
        If the block ends without an error, a thread stores the file. One process packs a base at a time; others wait
        for it and map its file.

        A folder that cannot be read or written, or a disk without room, is logged, and nothing is stored.
        """
        if size < LARGE_BYTES or size > self.most_bytes:  # packing a small model takes no longer than reading its file
            yield pack_tensors
            return
        identity = {"base": base_cid, "machine": this_machine().name}
        folder = self.path / cid_of_json(identity).rpartition(":")[2]
        with ExitStack() as stack:
            kept = self._open_stored(folder, identity)
            if kept is None:
                with suppress(OSError):
                    self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(one_at_a_time(folder))
                kept = self._open_stored(folder, identity)
            if kept is not None:
                stack.close()
                yield kept.pack
                return
            file = self._new_file(folder, identity, size)
            if file is None:
                yield pack_tensors
                return
            stack.callback(file.close)
            yield file.pack
            locked = stack.pop_all()  # until the file has its name
        threading.Thread(target=self._store, args=(file, locked), name="packed weights").start()

    def _open_stored(self, folder: Path, identity: _Identity) -> _KeptWeights | None:
        """The stored weights of this version, if any. Deletes damaged files, and keeps files that it cannot read."""
        for path in folder.glob(f"{_version()}-*"):
            try:
                if self.digests.digest(path) != _digest_in(path):
                    raise ValueError("its bytes have changed")
                kept = _KeptWeights.open(path, identity)
                with suppress(OSError):  # a folder of another user, or of an image
                    os.utime(folder)
                _log.info("mapping the packed weights in %s", path)
                return kept
            except OSError as error:
                _log.warning("packing the weights again, since %s cannot be read: %s", path, error)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                _log.warning("packing the weights again, since %s cannot be used: %s", path, error)
                with suppress(OSError):
                    path.unlink()
        return None

    def _new_file(self, folder: Path, identity: _Identity, size: int) -> _NewFile | None:
        """A new file in the folder, whose lock is held; None, with a log line, if there is no room."""
        try:
            for left in remove_drafts(folder):
                _log.warning("packing the weights again: deleted %s, which an earlier process had not finished", left)
            self._make_room(size, folder)
            free = shutil.disk_usage(folder).free
            if free < size + _SPARE_BYTES:
                raise OSError(f"{free / 1e9:.1f} GB are free, {(size + _SPARE_BYTES) / 1e9:.1f} GB needed")
            return _NewFile(folder, identity, self.most_bytes)
        except OSError as error:
            _log.warning("not keeping packed weights in %s: %s", self.path, error)
            return None

    def _make_room(self, size: int, own: Path) -> None:
        """Delete packed weights, the least recently used first, until `size` more bytes are within the limit. Earlier
        packings of this base are always deleted.
        """
        for path in own.glob("[!.]*-*"):
            path.unlink()
        others = [folder for folder in self.path.iterdir() if folder.is_dir() and folder != own]
        sizes = {folder: sum(file.stat().st_size for file in folder.iterdir()) for folder in others}
        for folder in sorted(others, key=lambda each: each.stat().st_mtime_ns):
            if sum(sizes.values()) + size <= self.most_bytes:
                return
            if await_empty(folder, 0.0):  # no process is packing there
                _log.info("deleting the least recently used packed weights: %s", folder)
                shutil.rmtree(folder)
                del sizes[folder]

    def _store(self, file: _NewFile, locked: ExitStack) -> None:
        give_way()  # the model is probed meanwhile
        with locked:
            try:
                if (path := file.finish()) is not None:
                    self.digests.keep(path, _digest_in(path))
                    _log.info("stored packed weights for the next start: %s, %.2f GB", path, path.stat().st_size / 1e9)
            except OSError as error:
                _log.warning("cannot keep packed weights in %s: %s", self.path, error)


@dataclass(frozen=True, slots=True)
class _MatrixLocation:
    """A matrix in a file."""

    offset: int
    storage: str
    columns: int
    inputs: int

    def of(self, content: Bytes) -> PackedWeights:
        """The matrix in the bytes from its offset on. Raises ValueError, KeyError if they are too few."""
        storage, panels = STORAGES[self.storage], padded(self.columns, PANEL) // PANEL
        size = panels * storage.panel(padded(self.inputs, PANEL))
        return PackedWeights(storage, self.columns, self.inputs, content[:size].reshape(panels, -1))


class _KeptWeights:
    """A mapped file. Thread-safe."""

    def __init__(self, content: Bytes, table: dict[str, _MatrixLocation]) -> None:
        self._content, self._table = content, table

    @classmethod
    def open(cls, path: Path, identity: _Identity) -> _KeptWeights:
        """Map a file. Raises OSError, ValueError for another base or machine, and for a damaged table ValueError,
        KeyError, TypeError, AttributeError or RecursionError.
        """
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        content = np.frombuffer(mapped, np.uint8)
        end = len(content) - _SIZE
        begin = end - int.from_bytes(mapped[end:], "little")
        document = json.loads(mapped[begin:end])
        if document["of"] != identity:
            raise ValueError(f"it is of {document['of']}, expected {identity}")
        if document["size"] != begin:
            raise ValueError(f"its table is at byte {begin}, expected {document['size']}")
        table = {name: _MatrixLocation(*place) for name, place in document["matrices"].items()}
        return cls(content, table)

    def pack(self, tensors: Sequence[StoredTensor], order: Int64 | None) -> PackedWeights:
        """A `Pack` that returns the stored matrix, and packs a missing one."""
        place = self._table.get(_name(tensors))
        return pack_tensors(tensors, order) if place is None else place.of(self._content[place.offset :])


class _NewFile:
    """A file that is being written. Its matrices are mapped from it, so that they take memory once.

    Used by one thread at a time.
    """

    def __init__(self, folder: Path, identity: _Identity, most_bytes: int) -> None:
        """Raises OSError."""
        handle, name = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY)
        self._file, self._path = os.fdopen(handle, "wb", buffering=0), Path(name)
        self._identity, self._most_bytes, self._position = identity, most_bytes, 0
        self._table = dict[str, _MatrixLocation]()

    def pack(self, tensors: Sequence[StoredTensor], order: Int64 | None) -> PackedWeights:
        """A `Pack` that also writes the matrix to the file. After an error it deletes the file and only packs."""
        if self._file.closed:
            return pack_tensors(tensors, order)
        try:
            return self._pack_into_file(_name(tensors), Packing.of(tensors, order))
        except (OSError, ValueError) as error:
            _log.warning("not keeping packed weights: %s", error)
            self.close()
            return pack_tensors(tensors, order)

    def _pack_into_file(self, name: str, packing: Packing) -> PackedWeights:
        """Pack into the file part by part, so that the matrix is in memory only once, as pages of the file."""
        place = _MatrixLocation(self._position, packing.storage.name, packing.columns, packing.inputs)
        (count, size), start = packing.shape, self._position
        self._position = padded(start + count * size, mmap.ALLOCATIONGRANULARITY)
        if self._position > self._most_bytes:
            raise OSError(f"they take more than the limit of {self._most_bytes} bytes")

        def write(first: int, end: int) -> None:
            panels = np.empty((end - first, size), np.uint8)
            packing.fill(panels, first)
            self._write(panels.reshape(-1).data, start + first * size)

        packing.each_part(write)
        self._table[name] = place
        with self._path.open("r+b") as file:
            file.truncate(self._position)
            mapped = mmap.mmap(file.fileno(), self._position - start, access=mmap.ACCESS_READ, offset=start)
        return place.of(np.frombuffer(mapped, np.uint8))

    def _write(self, data: memoryview | bytes, position: int) -> None:
        left = memoryview(data)
        while left:
            count = os.pwrite(self._file.fileno(), left, position)
            left, position = left[count:], position + count

    def finish(self) -> Path | None:
        """Write the table, sync the file and rename it. Returns its path, None if it was closed. Raises OSError."""
        if self._file.closed:
            return None
        matrices = {name: astuple(place) for name, place in self._table.items()}
        table = json.dumps({"of": self._identity, "size": self._position, "matrices": matrices}).encode()
        self._write(table + len(table).to_bytes(_SIZE, "little"), self._position)
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        path = self._path.with_name(f"{_version()}-{digest}")
        move_durably(self._path, path)
        return path

    def close(self) -> None:
        """Delete the file, unless it was renamed. Its maps stay valid."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _digest_in(path: Path) -> str:
    """The digest that a file's name has."""
    return f"sha256:{path.name.rpartition('-')[2]}"


def _name(tensors: Sequence[StoredTensor]) -> str:
    return " ".join(tensor.name for tensor in tensors)


@cache
def _version() -> str:
    """A digest of the code that determines the order and the bytes of packed weights; gguf widens tensors."""
    sources = b"".join(path.read_bytes() for pattern in _SOURCES for path in sorted(_PACKAGE.glob(pattern)))
    return hashlib.sha256(sources + version("gguf").encode()).hexdigest()[:16]
