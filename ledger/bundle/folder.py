"""Reading a bundle from a folder or an archive, file by file, within the bounds of the format."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ledger.bundle.layout import MAX_FILES, MAX_TOTAL_BYTES, BundleFile, bound_of
from ledger.bundle.tar_archive import unpack
from ledger.errors import FormatError, NotFound


@dataclass(frozen=True, slots=True)
class BundleFolder:
    """A bundle that lies in a folder. Holding one proves nothing: `verification.verify_bundle` it."""

    folder: Path

    def read(self, path: str) -> bytes:
        """The bytes of one file. Raises FormatError where it is missing, too large, or not a regular file."""
        bound = bound_of(path)
        try:
            # Neither a link to somewhere else nor a pipe that never ends.
            descriptor = os.open(self.folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise FormatError("bundle", f"{path} is not a regular file")
                data = file.read(bound + 1)
        except OSError as error:
            raise FormatError("bundle", f"cannot read {path}: {error.strerror}") from None
        if len(data) > bound:
            raise FormatError("bundle", f"{path} measures more than {bound} bytes")
        return data

    def paths(self) -> tuple[str, ...]:
        """All files, sorted. Raises FormatError for anything in the folder that is no file of a bundle."""
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
                raise FormatError("bundle", f"{relative} is no regular file, or one too many")
            yield relative

    def _walk(self) -> Iterator[Path]:
        for top in sorted(self.folder.iterdir()):
            if top.is_dir() and not top.is_symlink():
                yield from top.iterdir()
            else:
                yield top


@contextmanager
def opened_bundle(path: Path) -> Iterator[BundleFolder]:
    """A bundle from a folder, or from an archive unpacked for as long as this lasts. Raises NotFound, FormatError."""
    if path.is_dir():
        yield BundleFolder(path)
    elif path.is_file():
        with tempfile.TemporaryDirectory(prefix="kolm-bundle-") as folder:
            unpack(path, Path(folder))
            yield BundleFolder(Path(folder))
    else:
        raise NotFound(f"there is no bundle at {path}")
