"""A ledger of each released version is read, migrated and gone on with; what is newer is left alone, by name."""

import json
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, Table, inspect, text

from ledger.audit.log_verification import verify_log
from ledger.bundle.folder import open_bundle
from ledger.bundle.report import Trust
from ledger.bundle.verification import verify_bundle
from ledger.errors import LedgerError, OtherRevision, StoreError, StoreLocked
from ledger.fsck import Depth, fsck
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.receipt_filter import ReceiptFilter
from ledger.log.sequencer import Sequencer
from ledger.log.store import entries_from
from ledger.sql.contents import SqlContentKeys
from ledger.sql.guard import SqlGuard
from ledger.sql.inspection import SqlInspection
from ledger.sql.migration import STEPS, migrate, planned
from ledger.sql.schema import OLDEST, REVISION
from ledger.sql.store import SqlEntryStore
from tests import documented
from tests.cli import kolm
from tests.examples import VECTORS
from tests.integration.ledger_store.writing import database, execute
from tests.unit.ledger.builders import KEYS, ORIGIN, content, signed_receipt
from tests.unit.ledger.log.memory_store import MemoryGuard

ROOT = VECTORS.parents[1]
KILLED = """
import os, signal, sys
from dataclasses import replace
from ledger.sql import migration

def end(connection):
    if sys.argv[2] == "within":
        (step,) = steps
        step.fill(connection)
    os.kill(os.getpid(), signal.SIGKILL)

steps = migration.STEPS
migration.STEPS = tuple(replace(step, fill=end) for step in steps)
target = sys.argv[1]
migration.migrate(target if "://" in target else f"sqlite:///{target}")
"""

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

    def revision(self) -> int:
        return planned(self.target).before


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


def test_there_is_a_release_of_every_revision_that_can_be_migrated() -> None:
    assert [step.to for step in STEPS] == list(range(OLDEST + 1, REVISION + 1))
    assert RELEASES


def test_a_ledger_of_an_earlier_version_is_read_migrated_and_gone_on_with(released: Released) -> None:
    before = released.verified()
    assert released.revision() == released.expected["revision"]
    with pytest.raises(OtherRevision):
        SqlEntryStore.open(released.target, released.keys)
    plan = planned(released.target)
    assert (plan.after, "audited_receipts" in plan.sql) == (REVISION, True)
    assert released.revision() == released.expected["revision"]  # planning changes nothing

    done = migrate(released.target)
    assert (done.before, done.after) == (released.expected["revision"], REVISION)
    assert released.verified() == before
    assert migrate(released.target).steps == ()
    with closing(SqlInspection.open(released.target, released.keys)) as inspection:
        assert fsck(inspection, released.trusted, Depth.DEEP).findings == ()
    with closing(SqlEntryStore.open(released.target, released.keys)) as store:
        running = Sequencer(store, KEYS["log"], released.trusted, ORIGIN, guard=MemoryGuard())
        assert running.append(signed_receipt(90), content(90)).result().index == len(before)
        running.close()
    with closing(SqlInspection.open(released.target, released.keys)) as inspection:
        assert fsck(inspection, released.trusted, Depth.DEEP).findings == ()


def test_nothing_is_migrated_while_a_ledger_runs(released: Released) -> None:
    migrate(released.target)
    with closing(SqlEntryStore.open(released.target, released.keys)):
        with pytest.raises(StoreLocked):
            migrate(released.target)
        assert planned(released.target).steps == ()


def test_a_migration_that_fails_changes_nothing(released: Released) -> None:
    trigger, junk = "leaves_refuse_change ON leaves", "decode('00', 'hex')"
    if isinstance(released.target, Path):
        trigger, junk = "leaves_refuse_update", "x'00'"
    released.execute(f"DROP TRIGGER {trigger}", f'UPDATE leaves SET entry = {junk} WHERE "index" = 5')
    with pytest.raises(LedgerError):
        migrate(released.target)
    assert released.revision() == released.expected["revision"]
    assert planned(released.target).steps


def test_newer_tables_are_left_alone_and_the_version_that_knows_them_is_named(released: Released) -> None:
    migrate(released.target)
    released.execute(f"UPDATE ledger_version SET revision = {REVISION + 7}, kolm = '9.8.7'")
    for refused in (
        lambda: SqlEntryStore.open(released.target, released.keys),
        lambda: SqlEntryStore.open_for_reading(released.target, released.keys),
        lambda: SqlInspection.open(released.target, released.keys),
        lambda: migrate(released.target),
    ):
        with pytest.raises(OtherRevision) as caught:
            refused()
        assert (caught.value.found, caught.value.needs) == (REVISION + 7, "9.8.7")


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
            connection.execute(text(f"DROP TABLE IF EXISTS {name}_version"))  # 0.1.0 had none
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


def copied(file: Path, url: str, table: str) -> None:
    """Copy the rows of a table from an SQLite file into another database."""
    with database(file) as source, database(url) as target:
        reflected = Table(table, MetaData(), autoload_with=source)
        with source.connect() as reading, target.begin() as writing:
            writing.execute(reflected.insert(), [dict(row._mapping) for row in reading.execute(reflected.select())])


@pytest.mark.parametrize("place", ["before", "within"])
def test_a_kill_during_a_migration_leaves_the_tables_as_they_were(released: Released, place: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(released.target), place], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert released.revision() == released.expected["revision"]
    before = released.verified()
    migrate(f"sqlite:///{released.target}" if isinstance(released.target, Path) else released.target)
    assert released.verified() == before


class DiskFull(sqlite3.Connection):
    """A disk that is full after the first page of a copy."""

    def backup(self, target: sqlite3.Connection, **_: Any) -> None:  # type: ignore[override]
        def full(*_: int) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        super().backup(target, pages=1, progress=full)


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.name)
def test_a_copy_that_fails_leaves_no_copy_and_the_tables_as_they_were(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = unpacked(path, tmp_path)
    target, backup = folder / "ledger.sqlite3", folder / "backup.sqlite3"
    before = sorted(folder.rglob("*"))
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=DiskFull))
        with pytest.raises(StoreError):
            migrate(target, backup=backup)
    assert sorted(each for each in folder.rglob("*") if each.name != "ledger.sqlite3.lock") == before
    assert planned(target).steps
    migrate(target, backup=backup)
    assert planned(backup).steps


def test_tables_from_before_the_first_release_are_named(released: Released) -> None:
    released.execute(f"UPDATE ledger_version SET revision = {OLDEST - 1}")
    with pytest.raises(OtherRevision) as refused:
        migrate(released.target)
    assert refused.value.found == OLDEST - 1


def objects(target: Path) -> dict[str, Any]:
    with database(target) as engine:
        there = inspect(engine)
        tables = there.get_table_names()
        found: dict[str, Any] = {
            table: {str(each["name"]): (str(each["type"]), each["nullable"]) for each in there.get_columns(table)}
            for table in tables
        }
        found["indexes"] = {table: sorted(str(each["name"]) for each in there.get_indexes(table)) for table in tables}
        found["views"] = {view: there.get_view_definition(view) for view in there.get_view_names()}
    return found


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.name)
def test_migrated_tables_are_those_of_a_new_database(path: Path, tmp_path: Path) -> None:
    folder = unpacked(path, tmp_path)
    migrate(folder / "ledger.sqlite3")
    SqlEntryStore.open(folder / "new.sqlite3").close()
    assert objects(folder / "ledger.sqlite3") == objects(folder / "new.sqlite3")


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.name)
def test_a_bundle_of_an_earlier_version_verifies(path: Path, tmp_path: Path) -> None:
    folder = unpacked(path, tmp_path)
    with open_bundle(folder / "bundle.tar.gz") as bundle:
        report = verify_bundle(bundle, Trust(TrustedKeys.load(folder / "trusted")))
    failed = {check.number for check in report.checks if check.passed is False}
    assert failed <= {9, 10, 14}  # statements of the log about its operator and auditor, as they were then
    assert sum(report.kinds.values()) == len(json.loads((folder / "expected.json").read_bytes())["kinds"])


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.name)
def test_the_command_copies_converts_and_says_so(path: Path, tmp_path: Path) -> None:
    folder = unpacked(path, tmp_path)
    shown, taken = documented.MIGRATED

    def run(line: str) -> Any:
        return kolm(*line.split()[1:], "--data-dir", folder, "--json")

    document = run(shown).document
    assert (document["done"], document["after"]) == (False, REVISION)
    copy = folder / f"ledger.sqlite3.revision-{document['before']}"
    assert not copy.exists()
    copy.write_bytes(b"there")
    assert (run(taken).code, copy.read_bytes()) == (1, b"there")  # nothing is written over
    copy.unlink()
    done = run(taken)
    assert (done.code, done.document["done"], done.document["backup"]) == (0, True, str(copy))
    assert planned(copy).before == document["before"]
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as kept:
        assert kept.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    again = run(taken)
    assert (again.code, again.document["steps"], again.document["done"]) == (0, [], False)
