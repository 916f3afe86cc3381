"""A folder of static tiles (C2SP tlog-tiles) that grows with its log; any web server can serve it as it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from ledger.bundle.layout import BundleFile
from ledger.bundle.tile_files import TiledTree, read_checkpoint
from ledger.bundle.tlog_tiles import CHECKPOINT, Published, TilePath
from ledger.durable_file import write_durably
from ledger.errors import NotFound, StoreError
from ledger.keys.note import Note
from ledger.tree.checkpoint import Checkpoint
from ledger.tree.tile import TILE_WIDTH


class TileFolder:
    """TileFiles. One process writes at a time; readers see a checkpoint only with all of its tiles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, path: str, most: int) -> bytes:
        """Raises NotFound, StoreError."""
        try:
            with (self._folder / path).open("rb") as file:
                return file.read(most)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"there is no {path} in {self._folder}") from None
        except OSError as error:
            raise StoreError(f"cannot read {self._folder / path}: {error.strerror}") from None

    def published(self) -> Published:
        """The tree in the folder; an empty one where there is no checkpoint.

        Raises FormatError for a checkpoint that is none, NotFound where tiles are missing, StoreError.
        """
        try:
            note = Note.from_bytes(read_checkpoint(self))
        except NotFound:
            return Published()
        checkpoint = Checkpoint.from_text(note.text)
        return Published.at(checkpoint, TiledTree(self, checkpoint.size))

    def write(self, files: Iterable[BundleFile]) -> None:
        """Write files in their order, each on disk before the next: a crash leaves the old checkpoint with its
        tiles, or the new one. Partial tiles are deleted once the full one is there. Raises StoreError.
        """
        try:
            for file in files:
                write_durably(self._folder / file.path, file.data, mode=0o644, folder_mode=0o755)
                if file.path != CHECKPOINT and TilePath.parse(file.path).width == TILE_WIDTH:
                    shutil.rmtree(self._folder / f"{file.path}.p", ignore_errors=True)
        except OSError as error:
            raise StoreError(f"cannot write tiles to {self._folder}: {error.strerror}") from None
