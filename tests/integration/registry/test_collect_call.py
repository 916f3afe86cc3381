"""CollectBlobs over real stubs: in a folder and in a bucket, for operators, with an age."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from kolm.registry.v1 import registry_pb2
from kolm.registry.v1.registry_pb2_grpc import RegistryServiceStub
from ledger.encoding.digest import digest
from services.client.connection.channel import Connection
from services.client.errors import InvalidArgument, decoded_errors
from services.client.registry.registry import RegistryClient
from services.registry.object_blobs import ObjectBlobStore
from tests.fakes.tiny_head import tiny_head
from tests.integration.registry.conftest import Serve
from tests.integration.registry.pushing import publish, send
from tests.unit.ledger.builders import signed, withdrawal

HOUR, NOW = timedelta(hours=1), timedelta(0)
KEPT, GONE = tiny_head(0), tiny_head(1)


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_an_operator_collects_and_heads_stay_whole(
    serve: Serve, tmp_path: Path, place: str, request: pytest.FixtureRequest
) -> None:
    blobs = str(tmp_path / "blobs") if place == "folder" else request.getfixturevalue("s3_url")
    with (
        serve(blobs=blobs) as served,
        RegistryClient.connect(served.address, wait=60) as publisher,
        RegistryClient.connect(served.address) as operator,
    ):
        publish(publisher, KEPT)
        publisher.withdraw(signed(withdrawal(KEPT.manifest.cid)))
        send(publisher, GONE.blobs)  # of the same base, and with the same config.json: one blob more
        young = operator.collect(24 * HOUR)
        assert (young.removed, young.referenced, young.young) == ((), 4, 1)
        would = operator.collect(NOW, dry_run=True)
        assert [blob.digest for blob in would.removed] == [digest(GONE.weights)]
        assert would.freed == len(GONE.weights)
        assert operator.collect(NOW) == would
        assert {blob.digest for blob in ObjectBlobStore.open(blobs).listed()} == {digest(data) for data in KEPT.blobs}
        assert operator.collect(NOW).removed == ()
        publish(publisher, GONE)
        assert operator.collect(NOW).referenced == 5


def test_what_a_killed_registry_left_in_its_folder_is_swept(serve: Serve, tmp_path: Path) -> None:
    staged = tmp_path / "registry" / "blobs" / "sha256" / "ab" / ("ab" * 32 + "#1")
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"half")
    with serve() as served, RegistryClient.connect(served.address, wait=60) as operator:
        assert operator.collect(HOUR).swept_bytes == 0
        assert operator.collect(NOW, dry_run=True).swept_bytes == 0
        assert operator.collect(NOW).freed == 4
    assert not staged.exists()


def test_an_age_is_asked_for_and_has_to_be_one(serve: Serve) -> None:
    with serve() as served, RegistryClient.connect(served.address, wait=60) as operator:
        for age in (timedelta(seconds=-1), timedelta(days=900_000)):
            with pytest.raises(InvalidArgument) as caught:
                operator.collect(age)
            assert caught.value.fields == ("older_than",)
        connection = Connection(served.address)
        stub = RegistryServiceStub(connection.channel)
        with pytest.raises(InvalidArgument, match="older_than"), decoded_errors():
            list(stub.CollectBlobs(registry_pb2.CollectBlobsRequest(), metadata=connection.metadata))
        connection.close()
