"""`kolm ledger verify --depth` on the files of a ledger service: which checks, which exit code, which words."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ledger.log.sequencer import Sequencer
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from services.cli.main import app
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, signed_receipt


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "trusted").mkdir()
    for role in ("log", "receipts"):
        KEYS[role].publish(tmp_path / "trusted")
    fill(tmp_path / "ledger.sqlite3", tmp_path / "guard.sqlite3")
    return tmp_path


def fill(target: Path | str, guard_file: Path) -> None:
    with (
        closing(SqlEntryStore.open(target, guard_file.parent / "content-keys/keys.sqlite3")) as store,
        closing(SqlGuard.open(guard_file)) as guard,
        closing(Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, guard=guard)) as sequencer,
    ):
        for number in range(3):
            sequencer.append(signed_receipt(number), content(number)).result()


def fsck(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ledger", "verify", *map(str, arguments)])


@pytest.mark.parametrize("depth", ["quick", "structure", "deep"])
def test_a_good_ledger_exits_0(data_dir: Path, depth: str) -> None:
    for where in (("--data-dir", data_dir), ("--database", data_dir / "ledger.sqlite3")):
        result = fsck("--depth", depth, *where)
        assert (result.exit_code, f"3 entries, {depth} check" in result.stdout) == (0, True)
    document = json.loads(fsck("--depth", depth, "--data-dir", data_dir, "--json").stdout)
    assert document == {"ok": True, "depth": depth, "size": 3, "unsigned": 0, "guarded": True, "findings": []}


def test_a_changed_row_is_named_and_exits_3(data_dir: Path) -> None:
    with closing(sqlite3.connect(data_dir / "ledger.sqlite3")) as connection, connection:
        connection.execute("UPDATE contents SET sealed = zeroblob(99) WHERE receipt_index = 1")
    assert fsck("--depth=structure", "--data-dir", data_dir).exit_code == 0  # structure does not look at content
    result = fsck("--depth=deep", "--data-dir", data_dir)
    assert result.exit_code == 3
    assert "contents row 1: " in result.stdout
    (finding,) = json.loads(fsck("--depth=deep", "--data-dir", data_dir, "--json").stdout)["findings"]
    assert (finding["table"], finding["row"]) == ("contents", 1)


def test_a_guard_that_has_seen_more_exits_3(data_dir: Path) -> None:
    with closing(sqlite3.connect(data_dir / "guard.sqlite3")) as connection, connection:
        connection.execute("UPDATE guard SET size = 9")
    result = fsck("--depth=quick", "--data-dir", data_dir)
    assert result.exit_code == 3
    assert "An old backup was restored" in result.stdout


def test_a_ledger_in_postgresql_is_checked_by_its_url(data_dir: Path, postgres_url: str) -> None:
    guard = data_dir / "other-guard.sqlite3"
    fill(postgres_url, guard)
    result = fsck("--depth=deep", "--data-dir", data_dir, "--database", postgres_url, "--guard", guard)
    assert (result.exit_code, "3 entries" in result.stdout) == (0, True)
    whole = CliRunner().invoke(app, ["ledger", "verify", "--data-dir", str(data_dir), "--database", postgres_url])
    assert (whole.exit_code, "3 entries" in whole.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--depth=deep", "--obligations"), 2, "--obligations"),
        (("--database", "missing.sqlite3"), 4, "no ledger at missing.sqlite3"),
        (("--guard", "missing.sqlite3"), 4, "missing.sqlite3"),
        (("--trusted", "missing"), 2, "no trusted keys"),
        (("--database", "mysql://root:secret@host/db"), 1, "expected a database URL"),
    ],
)
def test_what_cannot_be_checked_is_said(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, says: str
) -> None:
    monkeypatch.chdir(data_dir)
    result = fsck("--depth=structure", "--data-dir", data_dir, *arguments)
    assert result.exit_code == code
    assert says in result.stderr
    assert "secret" not in result.output


def test_a_guard_is_for_the_check_of_a_database(data_dir: Path) -> None:
    assert fsck("--data-dir", data_dir, "--guard", data_dir / "guard.sqlite3").exit_code == 2
