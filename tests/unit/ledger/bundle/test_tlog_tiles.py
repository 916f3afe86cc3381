"""C2SP tlog-tiles: the export, read the way other people's tools read it."""

import struct

import pytest

from ledger.bundle.tlog_tiles import export_tiles, tile_path
from ledger.errors import ProofError
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.merkle import inclusion_proof, leaf_hash, verify_inclusion
from ledger.tree.tile import TileHashes
from tests.unit.ledger.builders import KEYS, ORIGIN
from tests.unit.ledger.tree.naive_tree import NaiveTree


def entries(size: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(size)]


def checkpoint(size: int) -> bytes:
    root = NaiveTree([leaf_hash(entry) for entry in entries(size)]).root(0, size)
    return sign_checkpoint(Checkpoint(ORIGIN, size, root), KEYS["log"])


def exported(size: int) -> dict[str, bytes]:
    return {file.path: file.data for file in export_tiles(iter(entries(size + 3)), checkpoint(size))}


class Fetched:
    """A client that knows a size and the specification: it asks for full tiles first, then for the partial one."""

    def __init__(self, files: dict[str, bytes], size: int) -> None:
        self._files, self._size = files, size

    def tile(self, level: int, number: int) -> bytes:
        width = min(256, self._size // 256**level - 256 * number)
        return self._files[tile_path(level, number, width)]


def test_paths_are_those_of_the_specification() -> None:
    assert tile_path(0, 1234067) == "tile/0/x001/x234/067"
    assert tile_path("entries", 0, 7) == "tile/entries/000.p/7"
    assert tile_path(2, 999) == "tile/2/999"
    assert tile_path(2, 1000, 255) == "tile/2/x001/000.p/255"


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 700])
def test_anybody_can_prove_anything_from_the_files(size: int) -> None:
    files = exported(size)
    assert list(files)[-1] == "checkpoint"
    read: list[bytes] = []
    for number in range(-(-size // 256)):
        bundle = files[tile_path("entries", number, min(256, size - 256 * number))]
        while bundle:
            (length,) = struct.unpack(">H", bundle[:2])
            read.append(bundle[2 : 2 + length])
            bundle = bundle[2 + length :]
    assert read == entries(size)
    hashes, tree = TileHashes(Fetched(files, size)), NaiveTree([leaf_hash(entry) for entry in read])
    for index in range(0, size, 13):
        proof = inclusion_proof(index, size, hashes)
        verify_inclusion(leaf_hash(read[index]), index, size, proof, tree.root(0, size))


def test_only_the_tiles_of_the_specification_are_there() -> None:
    # "a tree of size 256 will be represented by a full level 0 tile and a partial level 1 tile of width 1"
    assert set(exported(256)) == {"checkpoint", "tile/entries/000", "tile/0/000", "tile/1/000.p/1"}
    assert set(exported(257)) == {
        "checkpoint",
        *("tile/entries/000", "tile/entries/001.p/1"),
        *("tile/0/000", "tile/0/001.p/1", "tile/1/000.p/1"),
    }


def test_entries_of_another_log_are_not_exported_under_this_checkpoint() -> None:
    for wrong in (entries(4), [*entries(4), b"other"]):
        with pytest.raises(ProofError, match="not those of the checkpoint"):
            list(export_tiles(wrong, checkpoint(5)))
