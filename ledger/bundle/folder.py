"""Bundles on disk: folders, read file by file within the bounds of the format, and archives of them. An archive is
untrusted: it must not write outside its folder or fill a disk.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from ledger.bundle.layout import MAX_FILES, MAX_TOTAL_BYTES, BundleFile, Room, bound_of
from ledger.errors import FormatError, NotFound, StoreError

_PIECE = 2**20
_BLOCK = tarfile.BLOCKSIZE


def add_file(folder: Path, file: BundleFile) -> None:
    """Add a file to a bundle's folder. Raises StoreError, also if it exists."""
    path = folder / file.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out:
            out.write(file.data)
    except OSError as error:
        raise StoreError(f"cannot write {file.path} to {folder}: {error.strerror}") from None


def archive(files: Iterable[BundleFile], *, compressed: bool = True) -> Iterator[bytes]:
    """The bundle as a .tar.gz, or a .tar, in pieces. The same files give the same bytes: the
    header has constant owners, times and modes."""
    sink = _Sink()
    with (
        gzip.GzipFile("", "wb", 6, sink, mtime=0) if compressed else nullcontext(sink) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for file in files:
            member = tarfile.TarInfo(file.path)
            member.size = len(file.data)
            tar.addfile(member, io.BytesIO(file.data))
            yield from sink.pieces()
    yield from sink.rest()


def unpack(path: Path, folder: Path, *, bounded_by_its_size: bool = True) -> None:
    """Unpack a .tar.gz or .tar into an empty folder. Raises FormatError for anything but the files of a bundle: links,
    devices, absolute paths, paths with `..`, duplicate names and files above the format's bounds. The error names the
    file. Only regular files are created, within the `Room` that the archive's size allows; memory is bounded too.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            room = Room(raw.seek(0, 2) if bounded_by_its_size else None)
            raw.seek(0)
            _unpack(_BoundedReader(cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if zipped else raw, room), folder)
    except (tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        raise FormatError("bundle", f"{path.name} is not a readable archive: {error}") from None
    except OSError as error:  # also gzip.BadGzipFile
        raise FormatError("bundle", f"{path.name} cannot be unpacked: {error}") from None


class _BoundedReader:
    """A reader of a tar's bytes that stays within a `Room`."""

    def __init__(self, stream: BinaryIO, room: Room) -> None:
        self._stream = stream
        self.room = room

    def read(self, size: int) -> bytes:
        """Raises FormatError for fewer bytes, and for more bytes than the room allows."""
        self.room.take(size)
        data = self._stream.read(size)
        if len(data) != size:
            raise FormatError("bundle", "the archive is cut short")
        return data

    def read_padded(self, size: int, bound: int, name: str) -> bytes:
        if not 0 <= size <= bound:
            raise FormatError("bundle", f"{name} measures {size} bytes, at most {bound} are allowed")
        return self.read(-(-size // _BLOCK) * _BLOCK)[:size]


def _unpack(stream: _BoundedReader, folder: Path) -> None:
    for number, (name, data) in enumerate(_files(stream)):
        if number >= MAX_FILES:
            raise FormatError("bundle", f"{name} is one file too many")
        stream.room.take_file(0)
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        with target.open("xb") as out:  # a second file of a name is refused
            out.write(data)


def _files(stream: _BoundedReader) -> Iterator[tuple[str, bytes]]:
    """The files of a bundle in a tar. `tarfile.open` is not used: it reads extended headers of any size into memory."""
    headers = 0
    while (block := stream.read(_BLOCK)) != bytes(_BLOCK):
        headers += 1
        if headers > 3 * MAX_FILES:  # a file has at most a folder and an extended header
            raise FormatError("bundle", "has more headers than files can need")
        header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        name = header.name.removeprefix("./").rstrip("/")
        if header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE):
            # Times and owners; the names of a bundle's files need no extension.
            stream.read_padded(header.size, 64 * 1024, "an extended header")
        elif header.isreg():
            yield name, stream.read_padded(header.size, bound_of(name), name)
        elif not header.isdir():
            raise FormatError("bundle", f"{name[:100]!r} is neither a file nor a folder")


class _Sink(io.RawIOBase):
    """A file object that buffers the archive until `pieces` takes it."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self._waiting += view
        return len(view)

    def pieces(self) -> Iterator[bytes]:
        """Remove and yield the buffered bytes, in whole pieces."""
        while len(self._waiting) >= _PIECE:
            yield bytes(self._waiting[:_PIECE])
            del self._waiting[:_PIECE]

    def rest(self) -> Iterator[bytes]:
        yield from self.pieces()
        if self._waiting:
            yield bytes(self._waiting)


@dataclass(frozen=True, slots=True)
class BundleFolder:
    """A bundle in a folder. Holding one proves nothing: use `verification.verify_bundle`."""

    folder: Path

    def read(self, path: str) -> bytes:
        """The bytes of one file. Raises FormatError if it is missing, too large, or not a regular file."""
        bound = bound_of(path)
        try:
            # Refuse links to files outside and pipes that never end.
            descriptor = os.open(self.folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise FormatError("bundle", f"{path} is not a regular file")
                # Allocating a buffer of the bound's size takes longer than reading the file.
                data = file.read(min(status.st_size, bound) + 1)
        except OSError as error:
            raise FormatError("bundle", f"cannot read {path}: {error.strerror}") from None
        if len(data) > bound:
            raise FormatError("bundle", f"{path} measures more than {bound} bytes")
        return data

    def paths(self) -> tuple[str, ...]:
        """All files, sorted. Raises FormatError if the folder holds another file than a bundle's."""
        try:
            return tuple(sorted(self._checked()))
        except OSError as error:
            raise FormatError("bundle", f"cannot be read: {error.strerror}") from None

    def files(self) -> Iterator[BundleFile]:
        """All files with their bytes, one at a time. Raises FormatError as `read` and `paths` do."""
        return (BundleFile(path, self.read(path)) for path in self.paths())

    def _checked(self) -> Iterator[str]:
        total = 0
        for number, path in enumerate(self._walk()):
            relative = path.relative_to(self.folder).as_posix()
            status = path.lstat()
            total += status.st_size
            bound_of(relative)
            if not stat.S_ISREG(status.st_mode) or number >= MAX_FILES or total > MAX_TOTAL_BYTES:
                problem = f"{relative} is not a regular file, or is beyond the limit of files or bytes"
                raise FormatError("bundle", problem)
            yield relative

    def _walk(self) -> Iterator[Path]:
        for top in sorted(self.folder.iterdir()):
            if top.is_dir() and not top.is_symlink():
                yield from top.iterdir()
            else:
                yield top


@contextmanager
def open_bundle(path: Path) -> Iterator[BundleFolder]:
    """Open a bundle in a folder, or in an archive, which is unpacked until the end of the block. Raises NotFound,
    FormatError.
    """
    if path.is_dir():
        yield BundleFolder(path)
    elif path.is_file():
        with tempfile.TemporaryDirectory(prefix="kolm-bundle-") as folder:
            unpack(path, Path(folder))
            yield BundleFolder(Path(folder))
    else:
        raise NotFound(f"there is no bundle at {path}")
