"""C2SP tlog-tiles: the export, read the way other people's tools read it."""

import struct
from pathlib import Path

import pytest

from ledger.bundle.tiles import (
    TiledTree,
    TileFolder,
    TilePath,
    entry_bundle,
    export_tiles,
    read_checkpoint,
    read_entry_bundle,
    tile_path,
)
from ledger.errors import FormatError, NotFound, ProofError
from ledger.tree.checkpoint import Checkpoint, open_checkpoint, sign_checkpoint
from ledger.tree.merkle import inclusion_proof, leaf_hash, tree_root, verify_inclusion
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


@pytest.mark.parametrize(
    "path", ["tile/0/x001/x234/067", "tile/entries/000.p/7", "tile/63/999", "tile/2/x001/000.p/255"]
)
def test_a_path_says_what_it_names(path: str) -> None:
    assert str(TilePath.parse(path)) == path


@pytest.mark.parametrize(
    "path",
    [
        *("tile/0/0", "tile/0/x000/001", "tile/00/001", "tile/64/001", "tile/0/001.p/0", "tile/0/001.p/256"),
        *("tile/0/001.p/07", "tile/0/001/", "/tile/0/001", "tile/-1/001", "tile/data/001", "tile/0/001/002"),
        *("tile/entries/../../checkpoint", "tile/0/x999/x999/x999/x999/x999/x999/999", "tile/0/\u0661\u0661\u0661", ""),
    ],
)
def test_there_is_one_path_for_a_tile(path: str) -> None:
    with pytest.raises(FormatError):
        TilePath.parse(path)


def test_a_bundle_that_ends_within_an_entry_is_told() -> None:
    whole = entry_bundle([b"", b"one", b"x" * 65_535])
    assert read_entry_bundle(whole) == [b"", b"one", b"x" * 65_535]
    for cut in (1, 3, len(whole) - 1):
        with pytest.raises(FormatError):
            read_entry_bundle(whole[:cut])


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 700])
def test_the_files_alone_prove_every_entry(size: int) -> None:
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
        with pytest.raises(ProofError):
            list(export_tiles(wrong, checkpoint(5)))


def grow(folder: TileFolder, size: int) -> list[str]:
    """Bring a folder up to a size; returns the paths that were written."""
    published = folder.published()
    files = list(export_tiles(entries(size)[published.start :], checkpoint(size), published))
    folder.write(files)
    return [file.path for file in files]


@pytest.mark.parametrize(
    "sizes",
    [(0, 1, 255, 256, 257), (3, 700, 700, 1025), (256, 512), pytest.param((70_000, 70_001), marks=pytest.mark.slow)],
)
def test_a_folder_that_grows_is_the_folder_of_the_grown_log(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    folder = TileFolder(tmp_path)
    for size in sizes:
        grow(folder, size)
        assert read_checkpoint(folder) == checkpoint(size)
        tree = TiledTree(folder, size)
        assert list(tree.entries(0)) == entries(size)
        assert list(tree.entries(max(0, size - 3))) == entries(size)[max(0, size - 3) :]
        assert tree_root(size, TileHashes(tree)) == open_checkpoint(checkpoint(size), [KEYS["log"].public]).root
        there = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
        fresh = exported(size)
        assert fresh.items() <= {name: path.read_bytes() for name, path in there.items()}.items()
        full = {name for name in there if ".p/" not in name}
        assert [name for name in there if name.partition(".p/")[0] in full and ".p/" in name] == []


def test_a_tree_whose_partial_tile_has_gone_is_read_from_the_full_one(tmp_path: Path) -> None:
    folder = TileFolder(tmp_path)
    for size in (250, 300):
        grow(folder, size)
    older = TiledTree(folder, 250)
    assert list(older.entries(0)) == entries(250)
    assert len(older.tile(0, 0)) == 250 * 32
    for level, number in ((0, 1), (1, 0)):
        with pytest.raises(NotFound):
            older.tile(level, number)


def test_a_folder_takes_no_log_that_does_not_extend_it(tmp_path: Path) -> None:
    folder = TileFolder(tmp_path)
    grow(folder, 300)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ProofError):
        folder.write(export_tiles(entries(299)[256:], checkpoint(299), folder.published()))
    forked = [*entries(290), *(b"other" for _ in range(20))]
    root = NaiveTree([leaf_hash(entry) for entry in forked]).root(0, 310)
    note = sign_checkpoint(Checkpoint(ORIGIN, 310, root), KEYS["log"])
    with pytest.raises(ProofError):
        folder.write(export_tiles(forked[256:], note, folder.published()))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_that_was_cut_short_is_taken_up_again(tmp_path: Path) -> None:
    folder = TileFolder(tmp_path)
    grow(folder, 300)
    files = list(export_tiles(entries(900)[256:], checkpoint(900), folder.published()))
    for cut in range(len(files)):
        folder.write(files[:cut])
        assert read_checkpoint(folder) == checkpoint(300)
        assert list(TiledTree(folder, 300).entries(0)) == entries(300)
    grow(folder, 900)
    assert list(TiledTree(folder, 900).entries(0)) == entries(900)
