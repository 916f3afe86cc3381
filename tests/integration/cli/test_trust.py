"""`kolm trust`: a person adds, lists and removes the keys that count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from services.cli.main import app
from tests.unit.ledger.builders import KEYS

RECEIPTS, AUDITOR = KEYS["receipts"], KEYS["auditor"]


class Kolm:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.trusted = data_dir / "trusted"

    def __call__(self, *words: object) -> tuple[int, Any]:
        result = self._run(*words, "--json")
        return result.exit_code, json.loads(result.stdout) if result.exit_code == 0 else result.stderr

    def text(self, *words: object) -> str:
        return str(self._run(*words).output)

    def _run(self, *words: object) -> Any:
        arguments = ["trust", *map(str, words), "--data-dir", str(self.data_dir)]
        return CliRunner(env={"COLUMNS": "300", "TERM": "dumb"}).invoke(app, arguments)


@pytest.fixture
def kolm(tmp_path: Path) -> Kolm:
    return Kolm(tmp_path / "data")


def test_what_services_have_published_is_trusted_once_a_person_adds_it(kolm: Kolm, tmp_path: Path) -> None:
    for key in (RECEIPTS, AUDITOR):
        key.publish(tmp_path / "public" / key.role)
    code, added = kolm("add", tmp_path / "public")
    assert (code, {(each["role"], each["new"]) for each in added}) == (0, {("receipts", True), ("auditor", True)})
    trusted = TrustedKeys.load(kolm.trusted)
    assert (trusted.keys("receipts"), trusted.keys("auditor")) == ((RECEIPTS.public,), (AUDITOR.public,))
    assert [each["new"] for each in kolm("add", tmp_path / "public")[1]] == [False, False]
    assert f"{RECEIPTS.key_id} could sign before for receipts" in kolm.text("add", tmp_path / "public")
    assert len(list(kolm.trusted.iterdir())) == 2


def test_a_key_file_of_any_name_takes_the_role_that_is_said(kolm: Kolm, tmp_path: Path) -> None:
    file = tmp_path / "from-a-mail.pem"
    file.write_bytes(AUDITOR.public.to_pem())
    code, err = kolm("add", file)
    assert (code, "does not say a role" in err, "--role" in err) == (2, True, True)
    assert kolm("add", file, "--role", "emperor")[0] == 2
    assert kolm("add", file, "--role", "auditor")[0] == 0
    assert [(each["role"], each["key_id"]) for each in kolm("list")[1]] == [("auditor", AUDITOR.key_id)]
    assert AUDITOR.key_id[:20] in kolm.text("list")


def test_nothing_is_added_unless_all_of_it_can_be(kolm: Kolm, tmp_path: Path) -> None:
    good = RECEIPTS.publish(tmp_path)
    (tmp_path / "auditor-1.pub").write_text("no key")
    (tmp_path / "empty").mkdir()
    for bad, code in ((tmp_path / "auditor-1.pub", 2), (tmp_path / "nothing.pub", 4), (tmp_path / "empty", 4)):
        assert kolm("add", good, bad)[0] == code
        assert not kolm.trusted.exists()


def test_a_private_key_is_not_taken_for_a_public_one(kolm: Kolm, tmp_path: Path) -> None:
    SigningKey.load_or_create(tmp_path / "operator.pem", "operator")
    code, err = kolm("add", tmp_path / "operator.pem", "--role", "operator")
    assert (code, "is not a PEM public key" in err) == (2, True)


def test_a_key_is_removed_or_kept_for_what_it_has_signed(kolm: Kolm, tmp_path: Path) -> None:
    for key in (RECEIPTS, AUDITOR):
        key.publish(kolm.trusted)
    digits = RECEIPTS.key_id.removeprefix("ed25519:")[:12]
    assert kolm("remove", "zzzz")[0] == 4
    code, (retired,) = kolm("remove", digits, "--retire")
    assert (code, retired["key_id"]) == (0, RECEIPTS.key_id)
    assert TrustedKeys.load(kolm.trusted).keys("receipts") == (RECEIPTS.public,)
    assert TrustedKeys.load(kolm.trusted, retired=False).keys("receipts") == ()
    assert [each["retired"] for each in kolm("list")[1]] == [False, True]
    assert kolm("remove", AUDITOR.key_id)[0] == kolm("remove", digits)[0] == 0
    assert kolm("list") == (0, [])


def test_a_key_is_trusted_for_some_tenants_and_keeps_that_until_a_person_says_otherwise(
    kolm: Kolm, tmp_path: Path
) -> None:
    file = RECEIPTS.publish(tmp_path)
    assert kolm("add", file, "--tenant", "acme")[1][0]["scope"] == {"tenant": ["acme"]}
    assert [each["scope"] for each in kolm("list")[1]] == [{"tenant": ["acme"]}]
    (again,) = kolm("add", file)[1]
    assert (again["scope"], again["new"]) == ({"tenant": ["acme"]}, False)
    (wider,) = kolm("add", file, "--tenant", "acme", "--tenant", "globex")[1]
    assert (wider["scope"], wider["new"]) == ({"tenant": ["acme", "globex"]}, True)
    assert TrustedKeys.load(kolm.trusted).keys("receipts")[0].scope.tenant == ("acme", "globex")
    assert "globex" in kolm.text("list")
    assert kolm("remove", RECEIPTS.key_id, "--retire")[0] == 0
    assert TrustedKeys.load(kolm.trusted).keys("receipts")[0].scope.tenant == ("acme", "globex")


def test_a_scope_is_for_keys_that_sign_receipts_and_says_something(kolm: Kolm, tmp_path: Path) -> None:
    assert kolm("add", AUDITOR.publish(tmp_path), "--tenant", "acme")[0] == 2
    assert kolm("add", RECEIPTS.publish(tmp_path), "--tenant", "")[0] == 2
    assert not kolm.trusted.exists()
