"""The contract of Catalogue, over SQLite and, if it is installed, PostgreSQL."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kolm.registry.v1 import registry_pb2
from ledger.documents.manifests import NamedFile
from ledger.encoding.text_forms import digest
from services.client.errors import KolmError, NotFound
from services.client.registry import RegistryClient, upload
from services.registry.head_catalogue import (
    KSCORE,
    PUBLICATION,
    WITHDRAWAL,
    Catalogue,
    HeadFilter,
    HeadReference,
    HeadRow,
    Signed,
)
from services.runtime.errors import Unavailable
from tests.access import open_access_file
from tests.forked import Forked, ran
from tests.fuzzing import flood
from tests.integration.registry.conftest import Serve
from tests.serving import started
from tests.unit.ledger.builders import BASE

OTHER = "cidv1:sha256:" + "0b" * 32


def cid(number: int) -> str:
    return f"cidv1:sha256:{number:064x}"


def row(number: int, base: str = BASE) -> HeadRow:
    return HeadRow(cid(number), base, b"manifest %d" % number)


def publication(number: int, name: str = "head", envelope: bytes = b"envelope") -> Signed:
    return Signed(PUBLICATION, cid(number), name, envelope)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'deep' / 'registry.sqlite3'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def catalogue(url: str) -> Iterator[Catalogue]:
    opened = Catalogue.open(url)
    yield opened
    opened.close()
    opened.close()


def publish(catalogue: Catalogue, number: int, index: int, name: str = "head", base: str = BASE) -> None:
    catalogue.confirm(catalogue.propose(row(number, base), publication(number, name)), index)


def cids(catalogue: Catalogue, text: str, base: str | None = None) -> list[str]:
    return [head.row.head_cid for head in catalogue.candidates(HeadReference.parse(text), base, 100)]


def test_a_head_is_seen_once_the_ledger_has_its_publication(catalogue: Catalogue) -> None:
    proposed = catalogue.propose(row(1), publication(1))
    assert (proposed.envelope, proposed.ledger_index) == (b"envelope", None)
    assert catalogue.head(cid(1)) is None
    assert list(catalogue.heads(HeadFilter(), -1, 10)) == []
    assert cids(catalogue, "head") == []
    assert list(catalogue.proposals()) == [proposed]
    catalogue.confirm(proposed, 0)
    catalogue.confirm(proposed, 0)
    head = catalogue.head(cid(1))
    assert head is not None
    assert (head.row, head.names, head.withdrawal) == (row(1), ("head",), None)
    assert list(catalogue.heads(HeadFilter(), -1, 10)) == [head]
    assert list(catalogue.proposals()) == []


def test_the_first_document_under_a_key_stands(catalogue: Catalogue) -> None:
    first = catalogue.propose(row(1), publication(1))
    assert catalogue.propose(row(1), publication(1, envelope=b"later")) == first
    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(lambda n: catalogue.propose(row(2), publication(2, envelope=b"%d" % n)), range(24)))
    assert len(answers) == 1
    assert len(catalogue.proposals()) == 2


def test_a_check_gets_the_first_publication_of_a_name_in_any_case(catalogue: Catalogue) -> None:
    first = catalogue.propose(row(1), publication(1, "MINI"))
    seen: list[Signed | None] = []
    for name in ("mini", "MINI", "other"):
        catalogue.propose(row(2), publication(2, name), seen.append)
    assert seen == [first, first, None]


def test_a_retracted_proposal_makes_room_and_a_confirmed_document_stays(catalogue: Catalogue) -> None:
    first = catalogue.propose(row(1), publication(1))
    catalogue.retract(publication(1, envelope=b"another one's"))
    assert list(catalogue.proposals()) == [first]
    catalogue.retract(first)
    later = catalogue.propose(row(1), publication(1, envelope=b"later"))
    assert later.envelope == b"later"
    catalogue.confirm(later, 5)
    catalogue.retract(later)
    assert catalogue.head(cid(1)) is not None


def test_documents_come_in_the_order_of_the_ledger(catalogue: Catalogue) -> None:
    publish(catalogue, 1, 9, "later-name")
    publish(catalogue, 1, 3, "earlier-name")
    for index, envelope in ((12, b"second"), (11, b"first")):
        catalogue.confirm(catalogue.propose(row(1), Signed(KSCORE, cid(1), envelope.decode(), envelope)), index)
    head = catalogue.head(cid(1))
    assert head is not None
    assert head.names == ("earlier-name", "later-name")
    assert [score.envelope for score in head.of_kind(KSCORE)] == [b"first", b"second"]


def test_lists_narrow_and_go_on(catalogue: Catalogue) -> None:
    for number in range(6):
        publish(catalogue, number, number, f"head-{number % 2}", OTHER if number == 5 else BASE)
    catalogue.confirm(catalogue.propose(row(4), Signed(WITHDRAWAL, cid(4), "", b"w")), 10)

    def listed(narrow: HeadFilter, after: int = -1, limit: int = 10) -> list[str]:
        return [head.row.head_cid for head in catalogue.heads(narrow, after, limit)]

    assert listed(HeadFilter()) == [cid(number) for number in (0, 1, 2, 3, 5)]
    assert listed(HeadFilter(withdrawn=True)) == [cid(number) for number in range(6)]
    assert listed(HeadFilter(base_cid=OTHER)) == [cid(5)]
    assert listed(HeadFilter(name="head-0")) == [cid(0), cid(2)]
    page = catalogue.heads(HeadFilter(), -1, 2)
    assert listed(HeadFilter(), page[-1].position, 2) == [cid(2), cid(3)]


def test_references_mean_the_newest_publication_first(catalogue: Catalogue) -> None:
    for number, index in ((0xA1, 5), (0xA2, 9), (0xB1, 7)):
        publish(catalogue, number, index)
    publish(catalogue, 0xA1, 20, "other")
    publish(catalogue, 0xC1, 30, "head", OTHER)
    assert cids(catalogue, "head") == [cid(0xC1), cid(0xA2), cid(0xB1), cid(0xA1)]
    assert cids(catalogue, "other") == [cid(0xA1)]
    assert cids(catalogue, "", BASE) == [cid(0xA1), cid(0xA2), cid(0xB1)]
    assert cids(catalogue, cid(0xB1)) == [cid(0xB1)]
    assert cids(catalogue, cid(0xB1), OTHER) == []
    assert cids(catalogue, f"other@sha256:{cid(0xB1)[13:]}") == []
    assert len(cids(catalogue, f"head@sha256:{'0' * 62}")) == 4
    assert cids(catalogue, f"head@sha256:{'0' * 62}a") == [cid(0xA2), cid(0xA1)]


def test_everything_is_there_again_after_opening_again(catalogue: Catalogue, url: str) -> None:
    publish(catalogue, 1, 0)
    waiting = catalogue.propose(row(2), publication(2))
    again = Catalogue.open(url)
    assert again.head(cid(1)) == catalogue.head(cid(1))
    assert list(again.proposals()) == [waiting]
    again.close()


def test_a_database_that_fails_is_unavailable_in_our_words(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "registry.sqlite3"
    catalogue = Catalogue.open(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE documents")
    with pytest.raises(Unavailable) as caught:
        catalogue.head(cid(1))
    assert (caught.value.reason, "documents" in str(caught.value)) == ("CATALOGUE_UNAVAILABLE", False)
    catalogue.close()


DATA = os.urandom(1024 * 1024) * 24
NAME = digest(DATA)


@contextmanager
def running(directory: Path, *more: str) -> Iterator[tuple[Forked, str]]:
    flags = ("--data-dir", str(directory), "--listen", "127.0.0.1:0", "--ledger", "127.0.0.1:1")
    flags += ("--principals", str(open_access_file()), *more)
    with started("services.registry", flags, directory / "address") as running:
        yield running


def blobs(directory: Path) -> list[Path]:
    return [path for path in (directory / "blobs").rglob("*") if path.is_file()]


@pytest.mark.parametrize("after", [3, 17])
def test_kill_9_in_the_middle_leaves_no_half_blob_and_the_upload_goes_on(tmp_path: Path, after: int) -> None:
    with running(tmp_path) as (process, address), RegistryClient.connect(address, wait=60) as registry:
        sent = threading.Event()

        def chunks() -> Iterator[bytes]:
            for start in range(0, len(DATA), 1024 * 1024):
                if start == after * 1024 * 1024:
                    sent.set()
                    process.wait()
                yield DATA[start : start + 1024 * 1024]

        def attempt() -> None:
            with pytest.raises(KolmError):
                registry.upload(NAME, len(DATA), 0, chunks())

        thread = threading.Thread(target=attempt)
        thread.start()
        assert sent.wait(90)
        process.send_signal(signal.SIGKILL)
        thread.join(60)
    assert blobs(tmp_path) == []
    (tmp_path / "head").write_bytes(DATA)
    with running(tmp_path) as (process, address), RegistryClient.connect(address, wait=60) as registry:
        left = registry.missing([(NAME, len(DATA))])[0].committed_size
        assert 0 <= left <= after * 1024 * 1024
        with pytest.raises(NotFound):
            list(registry.download(NAME))
        seen: list[int] = []
        upload(registry, NamedFile("head", len(DATA), NAME), lambda: (tmp_path / "head").open("rb"), seen.append)
        assert seen[0] == left
        assert b"".join(registry.download(NAME)) == DATA
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--blobs", "nothing://x"), "nothing"),
        (("--database", "sqlite:////proc/nowhere/x.sqlite3"), "cannot open"),
        (("--database", "no url"), "cannot open"),
    ],
)
def test_what_cannot_be_opened_ends_the_start_with_a_reason(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    code, output = ran("services.registry", f"--data-dir={tmp_path}", "--listen=127.0.0.1:0", *flags)
    assert (code, words in output, "Traceback" in output) == (1, True, False), output


SERVICE = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]


def test_random_messages_are_answered_or_refused(serve: Serve) -> None:
    with serve() as served:
        flood(served.address, SERVICE)
