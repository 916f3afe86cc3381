"""The contract of BlobStore, over a folder and over memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore

from ledger.digest import digest
from services.registry import blobs
from services.registry.blobs import CHUNK_BYTES, BlobStore, ObjectBlobStore
from services.registry.errors import DiskFull
from services.runtime.errors import DataLoss, NotFound, Unavailable

DATA = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"and a bit"
Stores = dict[str, Callable[[Path], tuple[ObjectBlobStore, object]]]


def _folder(path: Path) -> tuple[ObjectBlobStore, object]:
    return ObjectBlobStore.open(str(path / "blobs")), LocalStore(path / "blobs")


def _memory(path: Path) -> tuple[ObjectBlobStore, object]:
    store = MemoryStore()
    return ObjectBlobStore(store), store


@pytest.fixture(params=[_folder, _memory], ids=["folder", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BlobStore, object]:
    """A store, and what is under it."""
    return request.param(tmp_path)  # type: ignore[no-any-return]


@pytest.fixture
def store(opened: tuple[BlobStore, object]) -> BlobStore:
    return opened[0]


@pytest.fixture
def put(store: BlobStore, tmp_path: Path) -> Callable[[bytes], str]:
    def keep(data: bytes) -> str:
        path = tmp_path / f"upload-{digest(data)[7:]}"
        path.write_bytes(data)
        store.put(digest(data), path)
        return digest(data)

    return keep


def key(name: str) -> str:
    return f"sha256/{name[7:9]}/{name[7:]}"


@pytest.mark.parametrize("data", [b"x", DATA, DATA[: 2 * CHUNK_BYTES]], ids=["byte", "some", "whole chunks"])
def test_what_was_put_is_read_back(store: BlobStore, put: Callable[[bytes], str], data: bytes) -> None:
    name = put(data)
    assert store.size(name) == len(data)
    assert store.read(name, len(data)) == data
    assert [len(chunk) <= CHUNK_BYTES for chunk in store.chunks(name)] == [True] * -(-len(data) // CHUNK_BYTES)
    for start in (0, 1, len(data) // 2, len(data) - 1, len(data)):
        assert b"".join(store.chunks(name, start)) == data[start:]
    assert store.range(name, len(data) // 2, 1) == data[len(data) // 2 :][:1]


def test_what_was_not_put_is_not_there(store: BlobStore) -> None:
    name = digest(b"nothing")
    assert store.size(name) is None
    for call in (lambda: list(store.chunks(name)), lambda: store.range(name, 0, 1), lambda: store.read(name, 10)):
        with pytest.raises(NotFound):
            call()


def test_putting_again_and_at_once_changes_nothing(store: BlobStore, put: Callable[[bytes], str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(put, [DATA] * 16))
    assert names == {digest(DATA)}
    assert store.read(names.pop(), len(DATA)) == DATA


def test_large_blobs_go_in_parts(
    store: BlobStore, put: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_MULTIPART_BYTES", CHUNK_BYTES)
    assert store.read(put(DATA), len(DATA)) == DATA
    assert store.read(put(DATA), len(DATA)) == DATA


@pytest.mark.parametrize("damage", [lambda data: data[:-1] + b"!", lambda data: b"!" + data[1:]], ids=["end", "start"])
def test_damaged_bytes_are_never_passed_off_as_whole(
    opened: tuple[BlobStore, object], put: Callable[[bytes], str], damage: Callable[[bytes], bytes]
) -> None:
    store, under = opened
    name = put(DATA)
    obstore.put(under, key(name), damage(DATA))  # type: ignore[arg-type]
    for start in (0, len(DATA) - 1):
        sent: list[bytes] = []
        with pytest.raises(DataLoss):
            sent.extend(store.chunks(name, start))
        assert len(b"".join(sent)) < len(DATA) - start
    with pytest.raises(DataLoss):
        store.read(name, len(DATA))


def test_a_blob_that_a_power_cut_left_short_is_not_there_and_can_be_put_again(
    opened: tuple[BlobStore, object], put: Callable[[bytes], str]
) -> None:
    store, under = opened
    name = put(DATA)
    obstore.put(under, key(name), DATA[:100])  # type: ignore[arg-type]
    assert store.size(name) == 100  # another size than the caller asks for: missing
    put(DATA)
    assert store.read(name, len(DATA)) == DATA


def test_reading_is_bounded(store: BlobStore, put: Callable[[bytes], str]) -> None:
    with pytest.raises(DataLoss, match="more than 10 bytes"):
        store.read(put(DATA), 10)


def test_what_the_store_under_it_says_is_not_said_to_callers(
    store: BlobStore, put: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, expected in (("os error 28: No space left on device", DiskFull), ("secret in a URL", Unavailable)):

        def fail(*arguments: object, text: str = words, **options: object) -> None:
            raise obstore.exceptions.GenericError(text)

        monkeypatch.setattr(obstore, "put", fail)
        with pytest.raises(expected) as caught:
            put(DATA)
        assert words not in str(caught.value)


@pytest.mark.parametrize("location", ["nothing://x", "az://container/prefix"])
def test_a_location_that_cannot_be_opened_says_so(location: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ObjectBlobStore.open(location)
