"""The registry over a bucket: what is uploaded, cut off, gone on with, published, pulled; several registries on one."""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from ledger.documents.manifests import NamedFile
from ledger.encoding.text_forms import digest
from services.client.errors import KolmError, NotFound, Unavailable
from services.client.registry import RegistryClient, upload
from services.registry.blobs import BlobStore
from tests.fakes.tiny_head import tiny_head
from tests.integration.registry.conftest import Serve
from tests.integration.registry.pushing import NAME, envelope, publish, stored

CHUNK = 1024 * 1024
DATA = bytes(range(256)) * (17 * CHUNK // 256) + b"and a bit"  # more than goes in one part


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (written := tmp_path / "model.safetensors").write_bytes(DATA)
    return written


def chunks(length: int) -> Iterator[bytes]:
    return (DATA[start : start + CHUNK] for start in range(0, length, CHUNK))


def cut_off(registry: RegistryClient, count: int) -> None:
    """Send some of the blob and stop."""
    with pytest.raises(KolmError, check=lambda error: error.fields == ("data",)):
        registry.upload(digest(DATA), len(DATA), 0, chunks(count * CHUNK))


def test_a_cut_upload_goes_on_after_a_restart_and_shows_in_the_bucket_once_it_is_whole(
    serve: Serve, s3_url: str, path: Path
) -> None:
    with serve(blobs=s3_url) as served, RegistryClient.connect(served.address, wait=60) as registry:
        cut_off(registry, 3)
        assert stored(BlobStore.open(s3_url)) == {}
    with serve(blobs=s3_url) as served, RegistryClient.connect(served.address, wait=60) as registry:
        with pytest.raises(NotFound):
            list(registry.download(digest(DATA)))
        seen: list[int] = []
        upload(registry, NamedFile.of("model.safetensors", DATA), lambda: path.open("rb"), seen.append)
        assert seen[0] == 3 * CHUNK
        assert b"".join(registry.download(digest(DATA))) == DATA
        assert b"".join(registry.download(digest(DATA), 9 * CHUNK + 5)) == DATA[9 * CHUNK + 5 :]
    assert stored(BlobStore.open(s3_url)) == {digest(DATA): len(DATA)}


def test_registries_that_share_a_bucket_and_a_catalogue_show_the_same_heads(
    serve: Serve, s3_url: str, postgres_url: str, tmp_path: Path
) -> None:
    head = tiny_head()
    shared = {"blobs": s3_url, "database": postgres_url}
    with (
        serve(**shared, data_dir=tmp_path / "one") as first,
        serve(**shared, data_dir=tmp_path / "two") as second,
        RegistryClient.connect(first.address, wait=60) as one,
        RegistryClient.connect(second.address, wait=60) as two,
    ):
        published = publish(one, head)
        assert two.resolve(NAME) == published
        assert two.missing([(part.digest, part.size) for part in head.manifest.files]) == []
        assert publish(two, head) == published
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(_publish, (one, two, one, two), timeout=60))
        assert one.resolve("at-once") == two.resolve("at-once")


def _publish(registry: RegistryClient) -> None:
    """Upload as `kolm heads push` does: an upload that another one overtakes continues from the committed size."""
    head = tiny_head(7)
    for data in head.blobs:
        upload(registry, NamedFile.of("blob", data), partial(io.BytesIO, data))
    registry.publish(head.manifest.to_bytes(), envelope(head, "at-once"))


def test_a_bucket_that_goes_away_is_said_to_be_away_and_costs_no_bytes(
    serve: Serve, s3_url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(blobs=s3_url) as served, RegistryClient.connect(served.address, wait=60) as registry:

        def fail(*arguments: object, **options: object) -> None:
            raise Unavailable("away", reason="BLOBS_UNAVAILABLE")

        with monkeypatch.context() as patched:
            patched.setattr(BlobStore, "_write", fail)
            with pytest.raises(KolmError):
                registry.upload(
                    digest(DATA), len(DATA), 0, (DATA[at : at + CHUNK] for at in range(0, len(DATA), CHUNK))
                )
        assert registry.missing([(digest(DATA), len(DATA))])[0].committed_size == len(DATA)
        registry.upload(digest(DATA), len(DATA), len(DATA), [])
        assert b"".join(registry.download(digest(DATA))) == DATA
