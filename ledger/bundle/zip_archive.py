"""Bundles as .zip, for readers without tar. As strict with an untrusted archive as `tar_archive`.

Plain zip only: no comment, no ZIP64, no encryption; so at most 65,535 files and 4 GiB. Larger ones go as .tar.gz.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from ledger.bundle.layout import MAX_FILES, MAX_TOTAL_BYTES, BundleFile, bound_of
from ledger.errors import FormatError, StoreError

_MAGIC = b"PK\x03\x04"
_END = struct.Struct("<4s4H2LH")  # the end of central directory record (APPNOTE 4.3.16), without a comment
_END_MAGIC, _LOCATOR_MAGIC, _LOCATOR_BYTES = b"PK\x05\x06", b"PK\x06\x07", 20
_MOST_DIRECTORY_BYTES = 32 * 2**20
_EPOCH = (1980, 1, 1, 0, 0, 0)


def is_zip(path: Path) -> bool:
    """Whether a file begins as a zip does. Raises FormatError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise FormatError("bundle", f"cannot be read: {error.strerror}") from None


def write_zip(files: Iterable[BundleFile], out: BinaryIO) -> None:
    """The same files give the same bytes. Raises StoreError for a bundle that is too large for a plain zip."""
    try:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, allowZip64=False) as zipped:
            for file in files:
                member = zipfile.ZipInfo(file.path, _EPOCH)
                member.compress_type = zipfile.ZIP_DEFLATED
                member.external_attr = (stat.S_IFREG | 0o644) << 16
                zipped.writestr(member, file.data)
    except zipfile.LargeZipFile:
        raise StoreError("the bundle is too large for a .zip: name a .tar.gz, or a folder") from None


def unzip(path: Path, folder: Path) -> None:
    """Unpack into an empty folder. Raises FormatError for anything but the files of a bundle.

    Only regular files within the format's bounds are created; memory stays bounded too.
    """
    try:
        with path.open("rb") as raw:
            _check_directory(raw)
            with zipfile.ZipFile(raw) as zipped:
                _unzip(zipped, folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise FormatError("bundle", f"is no readable zip: {error}") from None
    except OSError as error:
        raise FormatError("bundle", f"cannot be unpacked: {error}") from None


def _check_directory(raw: BinaryIO) -> None:
    """`zipfile` reads the whole directory at once: look at how large it says it is first."""
    size = raw.seek(0, 2)
    if size < _END.size:
        raise FormatError("bundle", "the archive is cut short")
    raw.seek(max(size - _END.size - _LOCATOR_BYTES, 0))
    tail = raw.read()
    magic, *_, count, directory, _, comment = _END.unpack(tail[-_END.size :])
    if magic != _END_MAGIC or comment or tail.startswith(_LOCATOR_MAGIC):
        raise FormatError("bundle", "is no plain zip: expected neither a comment nor ZIP64")
    if count > MAX_FILES or directory > _MOST_DIRECTORY_BYTES:
        raise FormatError("bundle", "has more headers than files can need")


def _unzip(zipped: zipfile.ZipFile, folder: Path) -> None:
    total = 0
    for member in zipped.infolist():
        if member.is_dir():
            continue
        name = member.filename.removeprefix("./")
        bound = bound_of(name)
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG) or member.flag_bits & 1:
            raise FormatError("bundle", f"{name} is not a plain file")
        with zipped.open(member) as file:
            data = file.read(bound + 1)
        total += len(data)
        if len(data) > bound or total > MAX_TOTAL_BYTES:
            raise FormatError("bundle", f"{name} measures more than {bound} bytes, or all files do too much")
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        with target.open("xb") as out:  # a second file of a name is refused
            out.write(data)
