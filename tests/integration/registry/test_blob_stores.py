"""The contract of BlobStore, over a folder, over memory and over a bucket."""

import errno
import re
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import obstore
import pytest
from obstore.store import MemoryStore

from ledger.encoding.text_forms import digest
from services.registry import blobs
from services.registry.blobs import CHUNK_BYTES, BlobStore
from services.registry.errors import DiskFull
from services.runtime.errors import DataLoss, NotFound, Unavailable
from tests.integration.registry.pushing import stored

PART_BYTES = 5 * CHUNK_BYTES  # S3 takes no smaller ones
DATA = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"and a bit"


@pytest.fixture
def other_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files to put are on another disk than a folder."""

    def fail(path: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(path), None, str(target))

    monkeypatch.setattr(Path, "replace", fail)


@pytest.fixture(params=["folder", "folder of another disk", "memory", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BlobStore, object]:
    """A store, and its storage."""
    if request.param == "folder of another disk":
        request.getfixturevalue("other_disk")
    if request.param == "memory":
        store = MemoryStore()
        return BlobStore(store), store
    location = str(tmp_path / "blobs") if "folder" in request.param else request.getfixturevalue("s3_url")
    return BlobStore.open(location), BlobStore.open(location).store


@pytest.fixture
def store(opened: tuple[BlobStore, object]) -> BlobStore:
    return opened[0]


@pytest.fixture
def put(store: BlobStore, tmp_path: Path) -> Callable[[bytes], str]:
    def keep(data: bytes) -> str:
        path = tmp_path / f"upload-{uuid4()}"  # one each: concurrent puts overwrite no other's file
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


def test_large_blobs_go_in_parts_and_show_once_all_are_there(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_PART_BYTES", PART_BYTES)
    data = bytes(2 * PART_BYTES) + b"and a bit"
    path = tmp_path / "large"
    for _ in range(2):
        path.write_bytes(data)
        store.put(digest(data), path)
        assert store.read(digest(data), len(data)) == data
    assert stored(store) == {digest(data): len(data)}


def test_a_large_blob_whose_parts_stop_coming_is_not_there(
    opened: tuple[BlobStore, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, under = opened
    name = digest(bytes(2 * PART_BYTES + 1))

    def parts() -> Iterator[bytes]:
        yield bytes(PART_BYTES)
        yield bytes(PART_BYTES)
        raise ConnectionError("cut")

    with pytest.raises(Exception, match="cut"):
        obstore.put(under, key(name), parts(), chunk_size=PART_BYTES)  # type: ignore[arg-type]
    assert store.size(name) is None
    assert stored(store) == {}


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


@pytest.mark.parametrize("read_first", [True, False])
@pytest.mark.parametrize("large", [True, False])
def test_a_damaged_blob_is_missing_and_can_be_put_again(
    opened: tuple[BlobStore, object],
    put: Callable[[bytes], str],
    monkeypatch: pytest.MonkeyPatch,
    large: bool,
    read_first: bool,
) -> None:
    monkeypatch.setattr(blobs, "_PART_BYTES", PART_BYTES)
    data = DATA + bytes(PART_BYTES) if large else DATA
    store, under = opened
    name = put(data)
    assert store.is_whole(name, len(data))
    assert store.may_be_whole(name, len(data))
    assert not store.is_whole(name, len(data) + 1)
    obstore.put(under, key(name), data[:-1] + b"!")  # type: ignore[arg-type]
    if read_first:
        with pytest.raises(DataLoss):
            list(store.chunks(name))
    assert not store.is_whole(name, len(data))
    assert not store.may_be_whole(name, len(data))
    put(data)
    assert store.is_whole(name, len(data))
    assert store.may_be_whole(name, len(data))
    assert store.read(name, len(data)) == data


def test_a_blob_is_read_once_to_find_that_it_is_whole(
    store: BlobStore, put: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = put(DATA)
    assert store.is_whole(name, len(DATA))

    def read(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(store, "range", read)
    assert store.is_whole(name, len(DATA))


def test_bits_that_a_disk_lost_under_an_unchanged_version_are_put_again(
    opened: tuple[BlobStore, object], put: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, under = opened
    monkeypatch.setattr(store, "_look", lambda _: (len(DATA), "the same version"))
    name = put(DATA)
    assert store.is_whole(name, len(DATA))
    obstore.put(under, key(name), DATA[:-1] + b"!")  # type: ignore[arg-type]
    put(DATA)
    assert store.read(name, len(DATA)) == DATA


def test_reading_is_bounded(store: BlobStore, put: Callable[[bytes], str]) -> None:
    with pytest.raises(DataLoss, check=lambda error: error.reason == "BLOB_TOO_LARGE"):
        store.read(put(DATA), 10)


@pytest.mark.usefixtures("other_disk")
def test_what_the_store_under_it_says_is_not_said_to_callers(
    put: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise obstore.exceptions.GenericError("secret in a URL")

    monkeypatch.setattr(obstore, "put", fail)
    with pytest.raises(Unavailable) as caught:
        put(DATA)
    assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("other_disk")
@pytest.mark.parametrize(("free", "expected"), [(1000, DiskFull), (2**40, Unavailable)])
def test_a_write_that_fails_on_a_full_disk_says_so(
    free: int, expected: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise obstore.exceptions.GenericError("in any language")

    store = BlobStore.open(str(tmp_path / "blobs"))
    (tmp_path / "data").write_bytes(DATA)
    monkeypatch.setattr(obstore, "put", fail)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free}))
    with pytest.raises(expected):
        store.put(digest(DATA), tmp_path / "data")


def test_a_bucket_keeps_to_its_prefix(s3_url: str, tmp_path: Path) -> None:
    (tmp_path / "upload").write_bytes(b"one")
    BlobStore.open(s3_url).put(digest(b"one"), tmp_path / "upload")
    bucket, _, query = s3_url.partition("/some/prefix")
    paths = [each["path"] for page in obstore.list(BlobStore.open(bucket + query).store) for each in page]
    assert paths == [f"some/prefix/{key(digest(b'one'))}"]
    assert BlobStore.open(f"{bucket}/some{query}").size(digest(b"one")) is None


def test_a_bucket_that_is_gone_or_away_is_unavailable_and_soon(
    s3_url: str, s3_endpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (path := tmp_path / "upload").write_bytes(b"one")
    store = BlobStore.open(s3_url)
    bucket = s3_url.removeprefix("s3://").split("/")[0]
    with urllib.request.urlopen(urllib.request.Request(f"{s3_endpoint}/{bucket}", method="DELETE"), timeout=60):
        pass
    with pytest.raises(Unavailable) as caught:
        store.put(digest(b"one"), path)
    assert (caught.value.reason, bucket in str(caught.value)) == ("BLOBS_UNAVAILABLE", False)
    assert "NoSuchBucket" in caplog.text


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("nothing://x", "expected a folder, s3://bucket/prefix"),
        ("https://example.org/x", "expected a folder, s3://bucket/prefix"),
        ("az://container/prefix", "Account must be specified"),
        ("s3://key:secret@bucket/prefix", "credentials belong into the environment"),
        ("s3://bucket?endpiont=http://127.0.0.1:1", "unknown option 'endpiont'; known are endpoint, region"),
        ("s3://", "s3://"),
    ],
)
def test_a_location_that_cannot_be_opened_says_so(location: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        BlobStore.open(location)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_found_at_once(s3_url: str, s3_endpoint: str) -> None:
    for location, words in (
        (f"s3://nobodys-bucket?endpoint={s3_endpoint}", "NoSuchBucket: The specified bucket does not exist"),
        ("s3://bucket?endpoint=http://127.0.0.1:1", "error sending request"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            BlobStore.open(location)
        assert "\n" not in str(caught.value)


def test_credentials_that_are_nowhere_are_said_to_be(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> None:
        url = "http://169.254.169.254/latest/api/token"  # the first line of obstore's error if no server answers
        raise obstore.exceptions.GenericError(f"Generic S3 error: Error performing PUT {url} in 5ms")

    monkeypatch.setattr(obstore, "list", ask)
    with pytest.raises(ValueError, match="no credentials in the environment"):
        BlobStore.open(s3_url)


def test_a_folder_may_be_written_as_a_url_and_takes_a_file_of_its_disk_without_a_copy(tmp_path: Path) -> None:
    (upload := tmp_path / "upload").write_bytes(b"one")
    number = upload.stat().st_ino
    BlobStore.open(f"file://{tmp_path}/some%20blobs").put(digest(b"one"), upload)
    stored = tmp_path / "some blobs" / key(digest(b"one"))
    assert (stored.read_bytes(), stored.stat().st_ino) == (b"one", number)
