"""A ledger service opens no log that is older than a checkpoint that others have seen, and none without its guard."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from ledger.errors import LogOfAnotherKey, RolledBack, StoreError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.note import Note
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.witness.cosignature_store import CosignatureStore
from services.cli.ledger import key_rotation
from services.ledger.__main__ import opened_servicer
from services.ledger.settings import LedgerSettings
from services.runtime.process import CannotStart
from tests.access import trust_log
from tests.cli import kolm
from tests.integration.ledger_store.test_fsck import tamper
from tests.unit.ledger.builders import KEYS, ORIGIN, STRANGER, signed_receipt


def run(data: Path, *numbers: int, **settings: object) -> Checkpoint:
    """Start the ledger of a folder, append receipts, stop it; its head then."""
    (data / "keys").mkdir(exist_ok=True)
    made = trust_log(LedgerSettings.model_validate({"data_dir": data, "origin": ORIGIN} | settings))
    with opened_servicer(made, CollectorRegistry()) as servicer:
        KEYS["receipts"].publish(data / "trusted")
        for number in numbers:
            servicer._sequencer.append(signed_receipt(number)).result()
        head = servicer.reader.head()
        CosignatureStore(made.witnessed, ORIGIN).record(head.size, Note.from_bytes(head.note))  # as the collector would
        return head.checkpoint


def fsck(data: Path) -> tuple[int, bool, list[tuple[str, int | None]]]:
    """The exit code, whether there was a guard, and table and row of each finding."""
    done = kolm("ledger", "verify", "--depth=quick", "--data-dir", data, "--json")
    findings = [(finding["table"], finding["row"]) for finding in done.document["findings"]]
    return done.code, done.document["guarded"], findings


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of two entries, and a backup of it; by now there are four."""
    data = tmp_path / "data"
    data.mkdir()
    run(data, 0, 1)
    shutil.copytree(data, tmp_path / "backup")
    run(data, 2, 3)
    return data


def restore(data: Path, *names: str, source: str = "backup") -> None:
    for name in names:
        for old in data.glob(f"{name}*"):
            old.unlink()
        for kept in (data.parent / source).glob(f"{name}*"):
            shutil.copy(kept, data)


def test_an_older_database_is_refused_by_the_sizes_of_both_and_the_newest_is_opened(data: Path) -> None:
    shutil.copytree(data, data.parent / "newest")
    shutil.rmtree(data / "witnessed")
    restore(data, "ledger.sqlite3")
    with pytest.raises(CannotStart) as caught:
        run(data)
    assert isinstance(caught.value.__cause__, RolledBack)
    assert "holds 2 entries (the head over 2 entries" in str(caught.value)
    assert "the guard has seen the head over 4 entries" in str(caught.value)
    restore(data, "ledger.sqlite3", source="newest")
    assert run(data, 4).size == 5


def test_a_restored_database_and_guard_are_refused_for_what_witnesses_have_cosigned(data: Path) -> None:
    restore(data, "ledger.sqlite3", "guard.sqlite3")
    with pytest.raises(CannotStart):
        run(data)
    code, _, findings = fsck(data)
    assert (code, ("witnessed", 4) in findings) == (3, True)
    with pytest.raises(CannotStart):
        run(data, new_guard=True)


def test_another_history_of_the_same_length_is_refused_too(data: Path) -> None:
    restore(data, "ledger.sqlite3", "guard.sqlite3")
    shutil.move(data / "witnessed", data / "aside")
    run(data, 4, 5)
    shutil.rmtree(data / "witnessed")
    shutil.move(data / "aside", data / "witnessed")
    with pytest.raises(CannotStart):
        run(data)
    assert fsck(data)[0] == 3


def test_an_older_note_under_a_newer_name_hides_nothing(data: Path) -> None:
    restore(data, "ledger.sqlite3", "guard.sqlite3")
    shutil.copy(data / "witnessed" / f"{2:019d}.note", data / "witnessed" / f"{9:019d}.note")
    with pytest.raises(CannotStart):
        run(data)
    assert fsck(data)[0] == 3


def test_a_note_that_the_log_did_not_sign_stops_nothing(data: Path) -> None:
    forged = sign_checkpoint(Checkpoint(ORIGIN, 9, bytes(32)), STRANGER)
    CosignatureStore(data / "witnessed", ORIGIN).record(9, Note.from_bytes(forged))
    (data / "witnessed" / f"{10:019d}.note").write_bytes(b"no note at all")
    assert run(data, 4).size == 5
    assert fsck(data)[0] == 0


def test_a_log_that_another_key_has_signed_is_refused_by_the_names_of_both_keys(data: Path) -> None:
    vkey = "+".join((data / "log.vkey").read_text().split("+", 2)[:2])
    (data / "keys/log.pem").rename(data / "keys/old.pem")
    shutil.move(data / "trusted", data / "aside")
    with pytest.raises(CannotStart) as caught:
        run(data)
    refused = caught.value.__cause__
    assert isinstance(refused, LogOfAnotherKey)
    own = "+".join((data / "log.vkey").read_text().split("+", 2)[:2])
    assert (refused.signers, refused.expected[0]) == ((vkey,), own)
    (data / "keys/log.pem").unlink()
    (data / "keys/old.pem").rename(data / "keys/log.pem")
    shutil.rmtree(data / "trusted")
    shutil.move(data / "aside", data / "trusted")
    assert run(data).size == 4


def test_a_log_with_entries_is_not_opened_without_its_guard(data: Path) -> None:
    restore(data, "ledger.sqlite3")
    for file in data.glob("guard.sqlite3*"):
        file.unlink()
    shutil.rmtree(data / "witnessed")
    assert fsck(data) == (0, False, [])
    for _ in range(2):
        with pytest.raises(CannotStart, match="--new-guard"):
            run(data)
    assert run(data, 2, new_guard=True).size == 3
    assert run(data, 3).size == 4
    assert fsck(data)[1]


def test_a_key_is_not_replaced_in_a_log_that_would_not_be_opened(data: Path) -> None:
    for file in data.glob("guard.sqlite3*"):
        file.unlink()
    assert rotate_log_key(data) == 3


def rotate_log_key(data: Path, *more: str) -> int:
    return kolm("ledger", "rotate-key", "log", "--data-dir", data, *more).code


def test_a_rotation_that_no_checkpoint_covers_is_signed_at_the_next_start(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(SqlEntryStore, "record_checkpoint", Mock(side_effect=StoreError("power cut")))
        assert rotate_log_key(data) != 0
        broken.setattr(key_rotation, "_record", Mock(return_value=4))  # an earlier version only replaced the files then
        assert rotate_log_key(data) == 0
    assert run(data).size == 5
    assert fsck(data)[0] == 0


@pytest.mark.parametrize("more", [(), ("--by-operator",)])
def test_a_new_key_signs_no_head_before_its_entry_also_after_a_crash(
    data: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    SigningKey.load_or_create(data / "keys/operator.pem", "operator").publish(data / "trusted")
    shutil.copytree(data / "trusted", data / "trusted-before")
    with monkeypatch.context() as broken:
        broken.setattr(SqlEntryStore, "record_checkpoint", Mock(side_effect=StoreError("power cut")))
        with pytest.raises(StoreError):
            run(data, 7)
    assert rotate_log_key(data, *more) == 0
    deep = kolm("ledger", "verify", "--depth=deep", "--data-dir", data, "--trusted", data / "trusted-before", "--json")
    assert deep.document["findings"] == []


def test_a_damaged_key_entry_is_refused_as_the_log_s(data: Path) -> None:
    assert rotate_log_key(data) == 0
    tamper(data / "ledger.sqlite3", "UPDATE leaves SET entry = x'00' WHERE kind = 'key'")
    with pytest.raises(CannotStart):
        run(data)


def test_a_damaged_guard_is_a_finding(data: Path) -> None:
    (data / "guard.sqlite3").write_bytes(b"\0" * 4096)
    code, _, findings = fsck(data)
    assert (code, [table for table, _ in findings]) == (3, ["guard"])
