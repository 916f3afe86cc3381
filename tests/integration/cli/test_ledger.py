"""`kolm ledger`, `kolm halts` and `kolm retention` against a served ledger and its database."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledger.documents.receipt import SpecDecode
from ledger.encoding.stream_digest import StreamDigest
from ledger.keys.ed25519 import SigningKey
from tests import cli
from tests.integration.auditor.deployment import Deployment
from tests.integration.cli.conftest import Kolm
from tests.integration.ledger_store.test_fsck import tamper
from tests.integration.ledger_store.writing import writing
from tests.mutations import replace
from tests.unit.ledger.builders import (
    KEYS,
    content,
    receipt,
    receipt_id,
    signed,
    signed_receipt,
    verdict,
)


def deviated(deployment: Deployment, number: int = 0) -> int:
    """A receipt with a deviation and its halt; the halt's index."""
    deployment.receive(number)
    deployment.replays.lies = {receipt_id(number)}
    (examined,) = deployment.auditor().run_pass()
    assert examined.halt_index is not None
    return examined.halt_index


def test_exact_over_no_token_is_not_shown_as_exact(deployment: Deployment, kolm: Kolm) -> None:
    """As for a request that was killed before its first token; the documents and --json have EXACT."""
    ended = replace(receipt(0).output, tokens=0, stream_digest=StreamDigest().hexdigest(), finish_reason="error")
    nothing = {"output": ended, "spec_decode": SpecDecode("off", "off", 0, 0, 0)}
    cases: tuple[tuple[int, dict[str, Any], int], ...] = ((0, nothing, 0), (1, {}, 2))
    for number, changes, tokens in cases:
        index = deployment.receive(number, with_content=False, **changes)
        deployment.ledger.append(signed(verdict(index, number, tokens_compared=tokens)))
    for words, shown in (("receipts", "show", "0"), False), (("receipts", "show", "2"), True):
        assert ("EXACT" in kolm(*words).out) == shown
    assert {each["outcome"] for each in kolm("receipts", "list", "--json").document} == {"EXACT"}


def test_a_receipt_is_found_by_id_and_by_entry_and_checked(deployment: Deployment, kolm: Kolm) -> None:
    index = deployment.receive(0)
    by_id = kolm("receipts", "show", receipt_id(0), "--json").document
    assert by_id == kolm("receipts", "show", index, "--json").document
    assert by_id["document"] == receipt(0).to_document()
    assert by_id["proof"] == {"signature": True, "inclusion": True, "tree_size": 1, "problem": None}
    shown = kolm("receipts", "show", index).out
    assert receipt(0).output.stream_digest in shown.replace("\n", "").replace(" ", "")


def test_a_receipt_is_found_by_the_beginning_of_its_id_if_there_is_one_such(deployment: Deployment, kolm: Kolm) -> None:
    for number in range(3):
        deployment.receive(number)
    for length in (9, 13, 20, 35):
        alone = [each for each in range(3) if receipt_id(each).startswith(receipt_id(1)[:length])] == [1]
        done = kolm("receipts", "show", receipt_id(1)[:length].upper(), "--json")
        assert done.code == (0 if alone else 2)
        if alone:
            assert done.document["document"]["receipt_id"] == receipt_id(1)
    assert kolm("receipts", "show", "0" * 12).code == 4


def test_a_receipt_by_a_key_that_is_not_trusted_here_is_exit_code_three(
    deployment: Deployment, kolm: Kolm, tmp_path: Path
) -> None:
    deployment.receive(0)
    elsewhere = tmp_path / "elsewhere"
    SigningKey.generate("receipts").publish(elsewhere)
    done = kolm("receipts", "show", "0", "--trusted", elsewhere, "--json")
    assert (done.code, done.document["proof"]["signature"]) == (3, False)


def test_what_is_not_there_is_exit_code_four(deployment: Deployment, kolm: Kolm) -> None:
    deviated(deployment)
    assert kolm("receipts", "show", receipt_id(5)).code == 4
    for absent in ("99", "9" * 20, "9" * 5000):
        assert kolm("receipts", "show", absent).code == 4
    assert kolm("receipts", "show", "1").code == 2  # a verdict
    assert kolm("halts", "resume", "0").code == 4


def test_a_whole_ledger_verifies_over_the_wire_and_from_its_file(
    deployment: Deployment, kolm: Kolm, tmp_path: Path
) -> None:
    deviated(deployment)
    for source in ((), ("--database", str(tmp_path / "ledger.sqlite3"))):
        done = kolm("ledger", "verify", *source, "--json")
        assert (done.code, done.document["kinds"]) == (0, {"receipt": 1, "verdict": 1, "halt": 1})
        assert all(check["passed"] for check in done.document["checks"])
        told = kolm("ledger", "verify", *source).err
        assert ("--depth deep" in told) == bool(source)  # a file holds more than the signed bytes


def test_a_changed_byte_is_exit_code_three_and_names_its_entry(
    deployment: Deployment, kolm: Kolm, tmp_path: Path
) -> None:
    for number in range(4):
        deployment.receive(number)
    database = tmp_path / "ledger.sqlite3"
    change_a_byte(database, 2)
    for source in ((), ("--database", str(database))):
        done = kolm("ledger", "verify", *source, "--json")
        assert (done.code, done.document["ok"], done.document["bad_index"]) == (3, False, 2)


def test_halts_are_listed_and_resumed_with_the_operator_s_key(
    deployment: Deployment, kolm: Kolm, tmp_path: Path
) -> None:
    index = deviated(deployment)
    done = kolm("halts", "list", "--json")
    (halt,) = done.document["halts"]
    assert done.code == 3
    assert (halt["halt_index"], halt["scope"]["method"]) == (index, "lookahead")
    assert kolm("halts", "list").code == 3
    (resumed,) = kolm("halts", "resume", index, "--reason=the kernel was replaced", "--json").document
    assert (resumed["halt_index"], resumed["resume_index"]) == (index, index + 1)
    assert deployment.ledger.halt_state().halts == ()
    assert (tmp_path / "keys" / "operator.pem").stat().st_mode & 0o777 == 0o600
    assert kolm("ledger", "verify").code == 0
    assert kolm("halts", "resume", "--all").code == 4


def change_a_byte(database: Path, index: int) -> None:
    """One character of an entry's payload, as a person with the file and SQL at hand could."""
    with closing(sqlite3.connect(database)) as connection:
        (entry,) = connection.execute('SELECT entry FROM leaves WHERE "index" = ?', (index,)).fetchone()
    at = entry.index(b'"payload":"') + 40
    changed = entry[:at] + (b"A" if entry[at : at + 1] != b"A" else b"B") + entry[at + 1 :]
    tamper(database, f"UPDATE leaves SET entry = x'{changed.hex()}' WHERE \"index\" = {index}")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for role in ("log", "receipts"):
        KEYS[role].publish(tmp_path / "trusted")
    files = (tmp_path / name for name in ("ledger.sqlite3", "content-keys/keys.sqlite3", "guard.sqlite3"))
    with writing(*files) as (_, sequencer):
        for number in range(3):
            sequencer.append(signed_receipt(number), content(number)).result()
    return tmp_path


fsck = partial(cli.kolm, "ledger", "verify")


@pytest.mark.parametrize("depth", ["quick", "structure", "deep"])
def test_a_good_ledger_exits_0(data_dir: Path, depth: str) -> None:
    for where in (("--data-dir", data_dir), ("--database", data_dir / "ledger.sqlite3")):
        assert fsck("--depth", depth, *where).code == 0
    document = fsck("--depth", depth, "--data-dir", data_dir, "--json").document
    assert document == {"ok": True, "depth": depth, "size": 3, "unsigned": 0, "guarded": True, "findings": []}


def test_a_changed_row_is_named_and_exits_3(data_dir: Path) -> None:
    with closing(sqlite3.connect(data_dir / "ledger.sqlite3")) as connection, connection:
        connection.execute("UPDATE contents SET sealed = zeroblob(99) WHERE receipt_index = 1")
    assert fsck("--depth=structure", "--data-dir", data_dir).code == 0  # structure does not look at content
    result = fsck("--depth=deep", "--data-dir", data_dir, "--json")
    assert result.code == 3
    (finding,) = result.document["findings"]
    assert (finding["table"], finding["row"]) == ("contents", 1)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--depth=deep", "--obligations"), 2),
        (("--database", "missing.sqlite3"), 4),
        (("--guard", "missing.sqlite3"), 4),
        (("--trusted", "missing"), 2),
        (("--database", "mysql://root:secret@host/db"), 1),
    ],
)
def test_a_check_that_is_impossible_is_named(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(data_dir)
    result = fsck("--depth=structure", "--data-dir", data_dir, *arguments)
    assert (result.code, "secret" in result.out + result.err) == (code, False)


def test_a_policy_is_set_and_shown(deployment: Deployment, kolm: Kolm) -> None:
    assert kolm("retention", "--json").document == {"policies": [], "expiries": []}
    assert kolm("retention", "--days", "30").code == 0
    assert kolm("retention", "--forever", "--tenant", "acme [b]").code == 0
    assert kolm("retention", "--days", "1", "--tenant", "acme [b]").code == 0
    shown = kolm("retention", "--json").document
    found = [(policy["index"], policy["tenant"], policy["days"]) for policy in shown["policies"]]
    assert found == [(0, None, 30), (2, "acme [b]", 1)]
    assert shown["expiries"] == []
    assert "acme [b]" in kolm("retention").out
    assert kolm("ledger", "verify", "--json").document["kinds"]["retention"] == 3


def test_what_is_no_policy_is_refused(deployment: Deployment, kolm: Kolm) -> None:
    for arguments in (("--tenant", "acme"), ("--days", "3", "--forever"), ("--days", "0"), ("--days", "36501")):
        assert kolm("retention", *arguments).code == 2
    assert deployment.ledger.checkpoint().tree_size == 0
