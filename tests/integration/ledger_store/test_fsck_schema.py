"""fsck names tables, columns, indexes and triggers that are missing; a schema that is broken is a finding."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ledger.errors import StoreError
from ledger.fsck import Depth, fsck
from ledger.sql.inspection import SqlInspection
from ledger.sql.store import SqlEntryStore
from tests.cli import Ended, kolm
from tests.integration.ledger_store.writing import execute, writing
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, signed_receipt


def fill(target: Path | str, folder: Path) -> None:
    with writing(target, folder / "content-keys/keys.sqlite3") as (_, sequencer):
        sequencer.append(signed_receipt(0), content(0)).result()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for role in ("log", "receipts"):
        KEYS[role].publish(tmp_path / "trusted")
    fill(tmp_path / "ledger.sqlite3", tmp_path)
    return tmp_path / "ledger.sqlite3"


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(";".join(statements))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def found(target: Path | str, depth: Depth = Depth.QUICK) -> list[str]:
    with closing(SqlInspection.open(target)) as inspection:
        return [str(finding) for finding in fsck(inspection, TRUSTED, depth, origin=ORIGIN).findings]


def command(path: Path, *arguments: str) -> Ended:
    return kolm("ledger", "verify", "--data-dir", path.parent, *arguments)


DAMAGE = {
    "DROP TRIGGER leaves_refuse_delete": "schema: the trigger leaves_refuse_delete is missing",
    "DROP INDEX receipts_by_tenant": "schema: the index receipts_by_tenant is missing",
    "ALTER TABLE verdicts RENAME COLUMN receipt_id TO more": "schema: the column receipt_id of verdicts is missing",
    "DROP TABLE fence": "schema: the table fence is missing",
    "DROP TABLE contents": "schema: the table contents is missing",
    "DROP TABLE ledger_version": "schema: the table ledger_version is missing",
}


@pytest.mark.parametrize("statement", DAMAGE)
def test_what_a_schema_lacks_is_a_finding_of_the_quick_check(path: Path, statement: str) -> None:
    assert found(path) == []
    change(path, statement)
    assert DAMAGE[statement] in found(path)
    for depth in ("quick", "structure", "deep"):
        result = command(path, f"--depth={depth}")
        assert (result.code, DAMAGE[statement] in result.out) == (3, True), result.shown


@pytest.mark.parametrize("statement", DAMAGE)
def test_a_ledger_does_not_write_to_a_schema_that_lacks_something(path: Path, statement: str) -> None:
    keys = path.parent / "content-keys/keys.sqlite3"
    SqlEntryStore.open(path, keys).close()
    change(path, statement)
    with pytest.raises(StoreError):
        SqlEntryStore.open(path, keys)


def test_a_table_that_the_walk_needs_is_a_finding_and_no_traceback(path: Path) -> None:
    change(path, "DROP TABLE leaves")
    result = command(path, "--depth=deep", "--json")
    assert (result.code, result.document["findings"][0]["table"]) == (3, "schema")


MALFORMED = (
    "UPDATE sqlite_master SET sql = 'CREATE TRIGGER x nonsense' WHERE name = 'leaves_refuse_update'",
    "UPDATE sqlite_master SET sql = 'CREATE TABLE tiles (' WHERE name = 'tiles'",
    "UPDATE sqlite_master SET rootpage = 999999 WHERE name = 'leaves'",
    "UPDATE sqlite_master SET sql = CAST(x'43524541544520e9ff' AS TEXT) WHERE name = 'receipts'",
)


@pytest.mark.parametrize("statement", MALFORMED)
def test_a_malformed_schema_is_a_finding_and_no_failure(path: Path, statement: str) -> None:
    change(path, "PRAGMA writable_schema=ON", statement, "PRAGMA writable_schema=OFF")
    for depth in ("quick", "deep"):
        result = command(path, f"--depth={depth}")
        assert result.code == 3, result.shown
    assert command(path, "--depth=structure", "--json").out.startswith("{")


def test_a_header_that_was_overwritten_is_a_finding(path: Path) -> None:
    change(path, "SELECT 1")
    path.write_bytes(b"\0" * 16 + path.read_bytes()[16:])
    result = command(path, "--depth=structure", "--json")
    assert (result.code, [each["table"] for each in result.document["findings"]]) == (3, ["database"])


def test_what_never_was_a_ledger_is_still_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE something (x)")
    with pytest.raises(StoreError):
        SqlInspection.open(tmp_path / "other.db")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DROP TRIGGER leaves_refuse_change ON leaves", "the trigger leaves_refuse_change is missing"),
        ("ALTER TABLE leaves DISABLE TRIGGER ALL", "the trigger leaves_refuse_change is missing"),
        ("DROP INDEX receipts_by_tenant", "the index receipts_by_tenant is missing"),
        ("ALTER TABLE tiles RENAME hashes TO more", "the column hashes of tiles is missing"),
        ("DROP TABLE fence", "the table fence is missing"),
    ],
)
def test_on_postgresql_too(postgres_url: str, tmp_path: Path, statement: str, expected: str) -> None:
    fill(postgres_url, tmp_path)
    assert found(postgres_url) == []
    execute(postgres_url, statement)
    assert any(finding.startswith(f"schema: {expected}") for finding in found(postgres_url)), found(postgres_url)
