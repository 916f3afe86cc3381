"""A collection of blobs removes unused ones and no others: in any order of events, and beside publications."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kolm.registry.v1 import registry_pb2
from kolm.registry.v1.registry_pb2_grpc import RegistryServiceStub
from ledger.documents.manifests import BaseManifest, NamedFile
from ledger.encoding.text_forms import digest
from services.client.channel import Connection
from services.client.errors import InvalidArgument, decoded_errors
from services.client.registry import RegistryClient
from services.registry.blob_collection import BlobCollection, check_whole
from services.registry.blobs import BlobStore
from services.registry.catalogue import PUBLICATION, Catalogue, HeadRow, Signed
from services.registry.errors import BadDocument, BaseUnknown, BlobMissing, HeadWithdrawn
from services.registry.publishing import Publishing
from services.runtime.errors import DataLoss, NotFound, Unavailable
from tests.examples import examples
from tests.fakes.memory_blobs import MemoryBlobs
from tests.fakes.tiny_head import BASE_CONFIG, TinyHead, tiny_head
from tests.integration.registry.conftest import Serve
from tests.integration.registry.pushing import envelope, publish, send
from tests.mutations import replace
from tests.unit.ledger.builders import TRUSTED, signed, withdrawal

HOUR = timedelta(hours=1)
STRAY = b"nobody's"
MOODS = st.sampled_from(["takes", "takes", "away", "refuses"])


def on_another_base(head: TinyHead) -> TinyHead:
    config = json.dumps(BASE_CONFIG | {"note": "another"}).encode()
    base = BaseManifest((NamedFile.of("config.json", config),), head.base.tokenizer_cid, head.base.weights)
    return replace(head, base_config=config, base=base)


HEADS = (tiny_head(0), tiny_head(1), on_another_base(tiny_head(0)), on_another_base(tiny_head(2)))
ANY_HEAD = st.integers(0, len(HEADS) - 1)
ROW = HeadRow(HEADS[0].manifest.cid, HEADS[0].manifest.subject, HEADS[0].manifest.to_bytes())
DOCUMENT = Signed(PUBLICATION, ROW.head_cid, "name", b"envelope")


def digests(head: TinyHead) -> set[str]:
    return {digest(data) for data in head.blobs}


def collect(catalogue: Catalogue, blobs: BlobStore, before: datetime, *, dry_run: bool = False) -> set[str]:
    return {blob.digest for batch in BlobCollection(catalogue, blobs, before, dry_run=dry_run) for blob in batch}


class MoodyLog:
    """A Log that takes what it is told to take."""

    def __init__(self) -> None:
        self.mood = "takes"
        self._entries: dict[bytes, int] = {}

    def append(self, document: bytes) -> int:
        if self.mood == "away":
            raise Unavailable("away", reason="LEDGER_UNAVAILABLE")
        if self.mood == "refuses":
            raise BadDocument("no")
        return self._entries.setdefault(document, len(self._entries))

    def publisher_rotations(self) -> Sequence[tuple[str, str]]:
        return ()


class Histories(RuleBasedStateMachine):
    """Uploads, publications, refusals, withdrawals and collections, in any order. The model knows only the rules:

    a head is on record from its proposal on until that is refused; the blobs of heads on record stay.
    """

    template: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        shutil.copy(self.template, self.folder / "registry.sqlite3")
        self.catalogue = Catalogue.open(f"sqlite:///{self.folder / 'registry.sqlite3'}")
        self.blobs, self.log = MemoryBlobs(), MoodyLog()
        self.publishing = Publishing(self.catalogue, self.blobs, self.log, TRUSTED)
        self.written: dict[str, datetime] = {}
        self.confirmed: set[int] = set()
        self.proposed: set[int] = set()
        self.withdrawn: set[int] = set()

    def teardown(self) -> None:
        self.catalogue.close()
        shutil.rmtree(self.folder)

    @initialize(head=ANY_HEAD, mood=MOODS)
    def a_first_head(self, head: int, mood: str) -> None:
        self.upload(head, {0, 1, 2, 3})
        self.publish(head, mood)

    @rule(head=ANY_HEAD, which=st.sets(st.integers(0, 3)))
    def upload(self, head: int, which: set[int]) -> None:
        for place in which:
            self.written.setdefault(self.blobs.keep(HEADS[head].blobs[place]), self.blobs.now)

    @rule()
    def upload_what_nobody_needs(self) -> None:
        self.written.setdefault(self.blobs.keep(STRAY), self.blobs.now)

    @rule(hours=st.integers(1, 30))
    def time_passes(self, hours: int) -> None:
        self.blobs.now += hours * HOUR

    @rule(head=ANY_HEAD, mood=MOODS)
    def publish(self, head: int, mood: str) -> None:
        self.log.mood = mood
        whole = digests(HEADS[head]) <= self.written.keys()
        try:
            self.publishing.publish(HEADS[head].manifest.to_bytes(), envelope(HEADS[head]))
        except HeadWithdrawn:
            assert head in self.withdrawn
        except (BlobMissing, BaseUnknown):
            assert not whole
        except Unavailable:
            assert (whole, mood) == (True, "away")
            self.proposed.add(head)
        except BadDocument:
            assert (whole, mood) == (True, "refuses")
            self.proposed.discard(head)
        else:
            assert whole
            self.proposed.discard(head)
            self.confirmed.add(head)

    @rule(mood=MOODS)
    def proposals_are_finished(self, mood: str) -> None:
        self.log.mood = mood
        self.publishing.finish_proposals()
        if mood == "takes":
            self.confirmed |= self.proposed
        if mood != "away":
            self.proposed = set()

    @precondition(lambda self: self.confirmed)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        head = data.draw(st.sampled_from(sorted(self.confirmed)))
        self.log.mood = "takes"
        self.publishing.withdraw(signed(withdrawal(HEADS[head].manifest.cid)))
        self.withdrawn.add(head)

    @rule(hours=st.integers(0, 30), dry_run=st.booleans())
    def collect(self, hours: int, dry_run: bool) -> None:
        before = self.blobs.now - hours * HOUR
        free = {name for name, written in self.written.items() if written < before} - self.on_record()
        assert collect(self.catalogue, self.blobs, before, dry_run=dry_run) == free
        if not dry_run:
            self.written = {name: written for name, written in self.written.items() if name not in free}

    @invariant()
    def the_store_holds_what_it_should(self) -> None:
        assert self.blobs.digests == self.written.keys()
        assert self.on_record() <= self.blobs.digests

    def on_record(self) -> set[str]:
        return {name for head in self.confirmed | self.proposed for name in digests(HEADS[head])}


def test_no_history_loses_a_blob_of_a_head_on_record(tmp_path: Path) -> None:
    Histories.template = tmp_path / "template.sqlite3"
    Catalogue.open(f"sqlite:///{Histories.template}").close()
    case = Histories.TestCase
    case.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
    case().runTest()


@pytest.fixture(params=["sqlite", "postgresql"])
def catalogue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalogue]:
    file = f"sqlite:///{tmp_path / 'registry.sqlite3'}"
    opened = Catalogue.open(file if request.param == "sqlite" else request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()


@pytest.fixture
def blobs() -> MemoryBlobs:
    made = MemoryBlobs()
    for data in HEADS[0].blobs:
        made.keep(data)
    return made


def test_a_collection_waits_for_a_proposal_and_keeps_what_it_refers_to(
    catalogue: Catalogue, blobs: MemoryBlobs
) -> None:
    removed: list[set[str]] = []
    collecting = threading.Thread(target=lambda: removed.append(collect(catalogue, blobs, blobs.now + HOUR)))

    def check(first: Signed | None) -> None:
        assert first is None
        check_whole(HEADS[0].manifest, blobs)
        collecting.start()
        collecting.join(0.3)  # long enough for one that does not wait

    catalogue.propose(ROW, DOCUMENT, check)
    collecting.join(60)
    assert removed == [set()]
    assert blobs.digests == digests(HEADS[0])


def test_a_proposal_waits_for_a_collection_and_finds_what_is_gone(
    catalogue: Catalogue, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    removing, refused = threading.Event(), list[BaseException]()
    remove = blobs.remove

    def propose() -> None:
        assert removing.wait(60)
        try:
            catalogue.propose(ROW, DOCUMENT, lambda first: check_whole(HEADS[0].manifest, blobs))
        except BlobMissing as error:
            refused.append(error)

    proposing = threading.Thread(target=propose)

    def slowly(names: Sequence[str]) -> None:
        removing.set()
        proposing.join(0.3)
        remove(names)

    monkeypatch.setattr(blobs, "remove", slowly)
    proposing.start()
    assert collect(catalogue, blobs, blobs.now + HOUR) == digests(HEADS[0])
    proposing.join(60)
    assert len(refused) == 1
    assert list(catalogue.rows()) == []


def test_a_head_that_the_ledger_refused_keeps_nothing(catalogue: Catalogue, blobs: MemoryBlobs) -> None:
    catalogue.retract(catalogue.propose(ROW, DOCUMENT))
    assert collect(catalogue, blobs, blobs.now + HOUR) == digests(HEADS[0])


def test_many_blobs_go_in_batches(catalogue: Catalogue, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.registry.blob_collection.BATCH", 3)
    catalogue.propose(ROW, DOCUMENT)
    strays = {blobs.keep(b"%d" % number) for number in range(8)}
    collection = BlobCollection(catalogue, blobs, blobs.now + HOUR, dry_run=False)
    assert [len(batch) for batch in collection] == [3, 3, 2]
    assert (collection.summary.referenced, collection.summary.young) == (4, 0)
    assert not strays & blobs.digests


@pytest.mark.parametrize(
    "harm", [NotFound("blob", "x"), DataLoss("damaged", reason="BLOB_DAMAGED")], ids=["missing", "damaged"]
)
def test_a_base_that_cannot_be_read_ends_the_collection_before_anything_is_removed(
    catalogue: Catalogue, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch, harm: Exception
) -> None:
    catalogue.propose(ROW, DOCUMENT)
    stray = blobs.keep(STRAY)

    def read(name: str, most: int) -> bytes:
        raise harm

    monkeypatch.setattr(blobs, "read", read)
    with pytest.raises(DataLoss, check=lambda error: error.reason == "BLOB_DAMAGED"):
        collect(catalogue, blobs, blobs.now + HOUR)
    assert stray in blobs.digests


def test_a_blob_that_goes_while_a_head_is_checked_ends_its_publication(
    catalogue: Catalogue, blobs: MemoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(*_: object) -> None:
        collect(catalogue, blobs, blobs.now + HOUR)

    publishing = Publishing(catalogue, blobs, MoodyLog(), TRUSTED)
    monkeypatch.setattr("services.registry.publishing.check_head", checked)
    with pytest.raises(BlobMissing):
        publishing.publish(HEADS[0].manifest.to_bytes(), envelope(HEADS[0]))
    assert list(catalogue.rows()) == []


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
        assert {blob.digest for blob in BlobStore.open(blobs).listed()} == {digest(data) for data in KEPT.blobs}
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
        with pytest.raises(InvalidArgument, check=lambda error: error.fields == ("older_than",)), decoded_errors():
            list(stub.CollectBlobs(registry_pb2.CollectBlobsRequest(), metadata=connection.metadata))
        connection.close()
