"""A ledger of each released version is read and gone on with; tables of another revision are left alone."""

import json
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, Table, text

from ledger.audit.log_verification import verify_log
from ledger.bundle.folder import open_bundle
from ledger.bundle.report import Trust
from ledger.bundle.verification import verify_bundle
from ledger.errors import OtherRevision, StoreError
from ledger.fsck import Depth, fsck
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.sequencer import Sequencer
from ledger.log.store import entries_from
from ledger.sql.contents import SqlContentKeys
from ledger.sql.guard import SqlGuard
from ledger.sql.inspection import SqlInspection
from ledger.sql.schema import REVISION
from ledger.sql.store import SqlEntryStore
from tests.examples import VECTORS
from tests.integration.ledger_store.writing import database, execute
from tests.unit.ledger.builders import KEYS, ORIGIN, content, signed_receipt
from tests.unit.ledger.log.memory_store import MemoryGuard

RELEASES = sorted((VECTORS / "releases").glob("*.tar.gz"))


class Released:
    """The files of a version: its ledger on one of the two databases, and everything beside it."""

    def __init__(self, folder: Path, target: Path | str, keys: Path) -> None:
        self.folder = folder
        self.target = target
        self.keys = keys
        self.expected: dict[str, Any] = json.loads((folder / "expected.json").read_bytes())
        self.trusted = TrustedKeys.load(folder / "trusted")

    def verified(self) -> list[bytes]:
        """All entries, once they hold."""
        with closing(SqlEntryStore.open_for_reading(self.target, self.keys)) as store:
            entries = list(entries_from(store))
            report = verify_log(entries, store.latest_checkpoint(), self.trusted, self.expected["origin"])
            assert (report.problem, report.size) == (None, len(self.expected["kinds"]))
            rows = store.receipts(ReceiptFilter(), -1, 100)
            assert len(rows) == self.expected["kinds"].count("receipt")
            for index, number in self.expected["contents"].items():
                erased = int(index) in self.expected["erased"]
                assert store.content(int(index)) == (None if erased else content(number))
        return entries

    def execute(self, *statements: str) -> None:
        execute(self.target, *statements)


def unpacked(path: Path, into: Path) -> Path:
    with tarfile.open(path) as archived:
        archived.extractall(into / "released", filter="data")
    return into / "released"


@pytest.fixture(
    params=[(path, name) for path in RELEASES for name in ("sqlite", "postgres")],
    ids=lambda one: f"{one[0].name}-{one[1]}",
)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Released:
    path, name = request.param
    folder = unpacked(path, tmp_path)
    if name == "sqlite":
        return Released(folder, folder / "ledger.sqlite3", folder / "content-keys/keys.sqlite3")
    url = str(request.getfixturevalue("postgres_url"))
    with database(url) as engine, closing(engine.raw_connection()) as connection, connection.cursor() as cursor:
        cursor.execute((folder / "postgresql.sql").read_text("utf-8"))
        connection.commit()
    return Released(folder, url, folder / "keys-of-postgresql.sqlite3")


def test_a_ledger_of_a_released_version_is_read_and_gone_on_with(released: Released) -> None:
    before = released.verified()
    with closing(SqlEntryStore.open(released.target, released.keys)) as store:
        running = Sequencer(store, KEYS["log"], released.trusted, ORIGIN, guard=MemoryGuard())
        assert running.append(signed_receipt(90), content(90)).result().index == len(before)
        running.close()
    with closing(SqlInspection.open(released.target, released.keys)) as inspection:
        assert fsck(inspection, released.trusted, Depth.DEEP).findings == ()


@pytest.mark.parametrize(("revision", "needs"), [(REVISION + 7, "9.8.7"), (REVISION - 1, None)])
def test_tables_of_another_revision_are_left_alone(released: Released, revision: int, needs: str | None) -> None:
    released.execute(f"UPDATE ledger_version SET revision = {revision}, kolm = '9.8.7'")
    for refused in (
        lambda: SqlEntryStore.open(released.target, released.keys),
        lambda: SqlEntryStore.open_for_reading(released.target, released.keys),
        lambda: SqlInspection.open(released.target, released.keys),
    ):
        with pytest.raises(OtherRevision) as caught:
            refused()
        assert (caught.value.found, caught.value.needs) == (revision, needs)


@pytest.mark.parametrize(
    ("store", "name", "file"),
    [(SqlGuard, "guard", "guard.sqlite3"), (SqlContentKeys, "content_keys", "content-keys/keys.sqlite3")],
)
@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.name)
def test_a_released_guard_and_content_keys_are_opened_and_other_revisions_refused(
    path: Path, store: type[SqlGuard | SqlContentKeys], name: str, file: str, postgres_url: str, tmp_path: Path
) -> None:
    released = unpacked(path, tmp_path)
    store.open(postgres_url).close()
    copied(released / file, postgres_url, name)
    for url in (postgres_url, f"sqlite:///{released / file}"):
        with database(url) as engine, engine.begin() as connection:
            rows = connection.execute(text(f"SELECT * FROM {name}")).all()
        store.open_for_reading(url).close()
        store.open(url).close()
        with database(url) as engine, engine.begin() as connection:
            assert connection.execute(text(f"SELECT * FROM {name}")).all() == rows != []
            assert connection.execute(text(f"SELECT revision, kolm FROM {name}_version")).all() == [(1, "0.1.0")]
        for revision, needs in ((2, "9.8.7"), (0, None)):
            execute(url, f"UPDATE {name}_version SET revision = {revision}, kolm = '9.8.7'")
            for opening in (store.open, store.open, store.open_for_reading):  # no lock is left
                with pytest.raises(OtherRevision) as refused:
                    opening(url)
                assert (refused.value.found, refused.value.needs) == (revision, needs)
        execute(url, f"DROP TABLE {name}_version")
        for opening in (store.open, store.open_for_reading):
            with pytest.raises(StoreError, match=f"{name}_version"):
                opening(url)


def copied(file: Path, url: str, table: str) -> None:
    """Copy the rows of a table from an SQLite file into another database."""
    with database(file) as source, database(url) as target:
        reflected = Table(table, MetaData(), autoload_with=source)
        with source.connect() as reading, target.begin() as writing:
            writing.execute(reflected.insert(), [dict(row._mapping) for row in reading.execute(reflected.select())])


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.name)
def test_a_bundle_of_a_released_version_verifies(path: Path, tmp_path: Path) -> None:
    folder = unpacked(path, tmp_path)
    with open_bundle(folder / "bundle.tar.gz") as bundle:
        report = verify_bundle(bundle, Trust(TrustedKeys.load(folder / "trusted")))
    failed = {check.number for check in report.checks if check.passed is False}
    assert failed <= {9, 10, 14}  # statements of the log about its operator and auditor, as they were then
    assert sum(report.kinds.values()) == len(json.loads((folder / "expected.json").read_bytes())["kinds"])
