"""Uploads and downloads: cut off, taken over, lied about, out of space. Nothing half is ever visible."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from kolm.registry.v1 import registry_pb2
from kolm.registry.v1.registry_pb2_grpc import RegistryServiceStub
from ledger.documents.manifests import NamedFile
from ledger.encoding.text_forms import digest
from services.client import registry as heads_wire
from services.client.channel import Connection
from services.client.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    KolmError,
    NotFound,
    ResourceExhausted,
    Unavailable,
    decoded_errors,
)
from services.client.registry import RegistryClient, download, upload
from services.registry.blobs import BlobStore
from services.registry.errors import DiskFull, UploadTakenOver
from services.registry.servicer import RegistryServicer
from services.registry.uploads import Part, Upload, Uploads
from tests.integration.registry.conftest import Serve

CHUNK = 1024 * 1024
DATA = bytes(range(256)) * (4 * CHUNK // 256) + b"and a bit"
NAME = digest(DATA)
BLOB = Part(NAME, len(DATA))
ANOTHER = Part(digest(b"another"), 7)
PART = NamedFile.of("model.safetensors", DATA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "model.safetensors"
    written.write_bytes(DATA)
    return written


def chunks(data: bytes = DATA) -> Iterator[bytes]:
    return (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))


def committed(registry: RegistryClient, name: str = NAME, size: int = len(DATA)) -> int | None:
    missing = registry.missing([(name, size)])
    return missing[0].committed_size if missing else None


def cut_after(registry: RegistryClient, count: int) -> None:
    """Send some chunks and then let the connection drop."""

    def messages() -> Iterator[registry_pb2.UploadBlobRequest]:
        yield registry_pb2.UploadBlobRequest(
            start=registry_pb2.UploadStart(blob=heads_wire.blob(NAME, len(DATA)), offset=committed(registry) or 0)
        )
        for _, chunk in zip(range(count), chunks(), strict=False):
            yield registry_pb2.UploadBlobRequest(data=chunk)
        arrived.wait(60)

    arrived = threading.Event()
    connection = Connection(registry.connection.target)
    call: Any = RegistryServiceStub(connection.channel).UploadBlob.future(messages(), metadata=connection.metadata)
    while committed(registry) != count * CHUNK:
        pass
    call.cancel()
    connection.close()
    arrived.set()


def test_an_upload_goes_on_where_the_connection_was_cut(registry: RegistryClient, path: Path) -> None:
    cut_after(registry, 2)
    seen: list[int] = []
    assert upload(registry, PART, lambda: path.open("rb"), seen.append)
    assert (seen[0], seen[-1]) == (2 * CHUNK, len(DATA))
    assert committed(registry) is None
    assert b"".join(registry.download(NAME)) == DATA
    assert not upload(registry, PART, lambda: path.open("rb"))


def test_an_upload_survives_a_restart_of_the_server(serve: Serve, path: Path) -> None:
    with serve() as served, RegistryClient.connect(served.address, wait=60) as registry:
        cut_after(registry, 3)
    with serve() as served, RegistryClient.connect(served.address, wait=60) as registry:
        assert committed(registry) == 3 * CHUNK
        upload(registry, PART, lambda: path.open("rb"))
        assert b"".join(registry.download(NAME)) == DATA


def test_a_newer_upload_takes_over_and_both_callers_end_well(registry: RegistryClient, path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        for place, chunk in enumerate(chunks()):
            yield chunk
            if place == 1:
                begun.set()
                go_on.wait(60)

    failures: list[KolmError] = []

    def first() -> None:
        try:
            registry.upload(NAME, len(DATA), 0, slowly())
        except KolmError as error:
            failures.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(60)
    while not committed(registry):
        pass
    assert upload(registry, PART, lambda: path.open("rb"))
    go_on.set()
    thread.join(60)
    assert [error.reason for error in failures] == ["UPLOAD_TAKEN_OVER"]
    assert b"".join(registry.download(NAME)) == DATA


def test_other_bytes_than_promised_are_thrown_away(registry: RegistryClient, path: Path) -> None:
    other = b"!" + DATA[1:]
    with pytest.raises(InvalidArgument) as caught:
        registry.upload(NAME, len(DATA), 0, chunks(other))
    assert caught.value.reason == "DIGEST_MISMATCH"
    assert committed(registry) == 0
    cut_after(registry, 2)
    with pytest.raises(InvalidArgument):
        registry.upload(NAME, len(DATA), 2 * CHUNK, [b"?" * CHUNK, b"?" * CHUNK, b"and a bit"])
    assert upload(registry, PART, lambda: path.open("rb"))


WRONG_UPLOADS: dict[str, tuple[int, int, list[bytes], type[KolmError], str]] = {
    "ten gigabytes": (10 * 10**9, 0, [b"x"], InvalidArgument, "BLOB_TOO_LARGE"),
    "nothing": (0, 0, [], InvalidArgument, "INVALID_ARGUMENT"),
    "a hole": (len(DATA), 5, [b"x"], FailedPrecondition, "OFFSET_MISMATCH"),
    "an empty chunk": (len(DATA), 0, [b""], InvalidArgument, "INVALID_ARGUMENT"),
    "a chunk too large": (len(DATA), 0, [b"x" * (CHUNK + 1)], InvalidArgument, "INVALID_ARGUMENT"),
    "more than declared": (10, 0, [b"x" * 11], InvalidArgument, "BLOB_TOO_LARGE"),
}


def test_what_an_upload_may_not_say(registry: RegistryClient, subtests: pytest.Subtests) -> None:
    for what, (size, offset, sent, kind, reason) in WRONG_UPLOADS.items():
        with subtests.test(what), pytest.raises(kind) as caught:
            registry.upload(NAME, size, offset, sent)
        assert caught.value.reason == reason
        with pytest.raises(NotFound):
            list(registry.download(NAME))


def test_an_upload_begins_with_its_start(registry: RegistryClient) -> None:
    stub = RegistryServiceStub(registry.connection.channel)
    for messages in ([], [registry_pb2.UploadBlobRequest(data=b"x")]):
        with pytest.raises(InvalidArgument, check=lambda error: error.fields == ("start",)), decoded_errors():
            stub.UploadBlob(iter(messages), metadata=registry.connection.metadata)


def test_a_full_disk_keeps_what_fits_and_shows_nothing(
    registry: RegistryClient, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = Path.open, [2]

    def full(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if self.suffix == ".part" and mode == "ab":
            if room[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            room[0] -= 1
        return real(self, mode, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        with pytest.raises(ResourceExhausted) as caught:
            registry.upload(NAME, len(DATA), 0, chunks())
    assert caught.value.reason == "DISK_FULL"
    assert committed(registry) == CHUNK  # one chunk fitted after the file was made
    upload(registry, PART, lambda: path.open("rb"))
    assert b"".join(registry.download(NAME)) == DATA


def test_an_upload_larger_than_the_disk_is_refused_before_it_begins(
    registry: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": len(DATA) - 1}))
    with pytest.raises(ResourceExhausted):
        registry.upload(NAME, len(DATA), 0, chunks())


def test_a_download_goes_on_and_ends_verified(registry: RegistryClient, path: Path, tmp_path: Path) -> None:
    upload(registry, PART, lambda: path.open("rb"))
    here = tmp_path / "here.safetensors"
    (tmp_path / "here.safetensors.part").write_bytes(DATA[: CHUNK + 5])
    seen: list[int] = []
    download(registry, PART, here, seen.append)
    assert here.read_bytes() == DATA
    assert seen[0] > CHUNK + 5
    (tmp_path / "bad.part").write_bytes(b"!" * CHUNK)
    with pytest.raises(DataLoss):
        download(registry, PART, tmp_path / "bad")
    assert not list(tmp_path.glob("bad*"))
    for offset in (len(DATA) + 1, 2**40):
        with pytest.raises(InvalidArgument):
            list(registry.download(NAME, offset))


def test_a_download_goes_on_after_a_server_that_stalls(
    serve: Serve, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, starts = RegistryServicer.DownloadBlob, list[int]()

    async def stalling(self: RegistryServicer, request: Any, context: Any) -> AsyncIterator[Any]:
        starts.append(request.offset)
        async for message in whole(self, request, context):
            yield message
            if len(starts) == 1:
                await asyncio.Event().wait()

    monkeypatch.setattr(RegistryServicer, "DownloadBlob", stalling)
    monkeypatch.setattr(heads_wire, "_ATTEMPT_SECONDS", 5.0)
    with serve() as served, RegistryClient.connect(served.address, wait=60) as registry:
        upload(registry, PART, lambda: path.open("rb"))
        download(registry, PART, tmp_path / "here")
    assert len(starts) == 2
    assert starts[1] > 0


def test_a_damaged_blob_is_not_downloaded(registry: RegistryClient, path: Path, tmp_path: Path) -> None:
    upload(registry, PART, lambda: path.open("rb"))
    stored = next(each for each in (tmp_path / "registry" / "blobs").rglob("*") if each.is_file())
    stored.write_bytes(DATA[:-1] + b"!")
    with pytest.raises(DataLoss):
        download(registry, PART, tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert upload(registry, PART, lambda: path.open("rb"))  # it is missing now
    assert stored.read_bytes() == DATA
    stored.write_bytes(b"!" + DATA[1:])  # found by no download
    registry.upload(PART.digest, PART.size, 0, [DATA[at : at + CHUNK] for at in range(0, len(DATA), CHUNK)])
    assert stored.read_bytes() == DATA
    download(registry, PART, tmp_path / "here")


def test_a_newcomer_neither_ends_nor_deletes_what_another_uploads(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, 2**30)
    mine = uploads.begin(Part(NAME, len(DATA), "me"), 0)
    mine.write(DATA[:CHUNK])
    for newcomer in (Part(NAME, len(DATA), "you"), Part(NAME, 3, "you"), Part(NAME, 3, "me")):
        theirs = uploads.begin(newcomer, 0)
        theirs.write(b"!!!")
        uploads.end(theirs)
        assert uploads.committed(newcomer) == 3
    mine.write(DATA[CHUNK:])
    assert mine.complete
    assert uploads.committed(Part(NAME, len(DATA), "me")) == len(DATA)


def test_uploads_leave_the_reserve_of_the_disk_free_all_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [100]
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free[0]}))
    uploads = Uploads(tmp_path, 2**30, reserve=20)
    first = uploads.begin(Part(NAME, 50), 0)
    with pytest.raises(DiskFull):
        uploads.begin(Part(digest(b"second"), 31), 0)
    second = uploads.begin(Part(digest(b"second"), 30), 0)
    first.write(b"x" * 10)
    free[0] = 29  # another process has written, too
    with pytest.raises(DiskFull):
        first.write(b"x" * 10)
    assert first.to_come == 40
    uploads.end(first)
    free[0] = 51
    second.write(b"x" * 30)


def test_a_call_that_was_cut_off_has_ended_before_the_next_upload_begins(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, 2**30)
    blobs = SlowBlobs()
    first = uploads.begin(BLOB, 0)
    first.write(DATA)
    with ThreadPoolExecutor(4) as pool:
        finishing = pool.submit(first.finish, blobs)
        assert blobs.begun.wait(60)
        ending, second = pool.submit(uploads.end, first), pool.submit(uploads.begin, BLOB, 0)
        third = uploads.begin(ANOTHER, 0)  # others do not wait
        uploads.end(third)
        assert not any(call.done() for call in (finishing, ending, second))
        blobs.go_on.set()
        finishing.result(60)
        ending.result(60)
        upload_again = second.result(60)
    upload_again.write(DATA[:CHUNK])
    assert uploads.committed(BLOB) == CHUNK
    with pytest.raises(UploadTakenOver):
        first.write(b"x")


async def test_a_call_that_is_cut_off_while_its_upload_begins_ends_the_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads, reading, go_on = Uploads(tmp_path, 2**30), threading.Event(), threading.Event()
    read = Upload._read

    def slowly(upload: Upload) -> None:
        read(upload)
        reading.set()
        go_on.wait(60)

    async def messages() -> AsyncIterator[registry_pb2.UploadBlobRequest]:
        yield registry_pb2.UploadBlobRequest(start=registry_pb2.UploadStart(blob=heads_wire.blob(NAME, len(DATA))))

    monkeypatch.setattr(Upload, "_read", slowly)
    nothing: Any = None
    servicer = RegistryServicer(nothing, nothing, BlobStore(MemoryStore()), uploads)
    call = asyncio.ensure_future(servicer.UploadBlob(messages(), nothing))
    await asyncio.to_thread(reading.wait, 60)
    call.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    uploads.forget_older_than(-1.0)
    assert not os.listdir(tmp_path)  # a running upload is not forgotten


def test_of_several_that_take_over_only_the_last_writes(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, 2**30)
    blobs = SlowBlobs()
    first = uploads.begin(BLOB, 0)
    first.write(DATA)
    with ThreadPoolExecutor(4) as pool:
        finishing = pool.submit(first.finish, blobs)
        assert blobs.begun.wait(60)
        others = [pool.submit(uploads.begin, BLOB, 0) for _ in range(3)]
        blobs.go_on.set()
        finishing.result(60)
        begun = [other.result(60) for other in others if other.exception(60) is None]
    assert all(isinstance(error, UploadTakenOver) for other in others if (error := other.exception()))
    writing = []
    for each in begun:
        with suppress(UploadTakenOver):
            each.write(DATA[:CHUNK])
            writing.append(each)
    assert len(writing) == 1
    assert uploads.committed(BLOB) == CHUNK


def test_abandoned_uploads_are_forgotten_and_running_ones_are_not(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, 2**30)
    left, running = uploads.begin(BLOB, 0), uploads.begin(ANOTHER, 0)
    left.write(DATA[:CHUNK])
    running.write(b"ano")
    uploads.end(left)
    for path in tmp_path.glob("*.part"):
        os.utime(path, (0, 0))
    uploads.forget_older_than(7.0)
    assert uploads.committed(BLOB) == 0
    running.write(b"ther")
    assert uploads.committed(ANOTHER) == 7
    uploads.forget_older_than(7.0)
    assert uploads.committed(ANOTHER) == 7


class SlowBlobs:
    """The part of a BlobStore that `Upload.finish` needs: a put waits for a signal."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def put(self, name: str, path: Path) -> None:
        self.begun.set()
        assert self.go_on.wait(60)
        assert digest(path.read_bytes()) == name


def test_a_registry_that_stays_away_is_given_up(path: Path) -> None:
    with RegistryClient.connect("127.0.0.1:1", timeout=1) as registry, pytest.raises(Unavailable):
        upload(registry, PART, lambda: path.open("rb"))
