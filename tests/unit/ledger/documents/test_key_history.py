from pathlib import Path

import pytest

from ledger.documents.key_entry import KeyEntry
from ledger.documents.key_history import KeyHistory
from ledger.documents.signed_document import sign_document, sign_rotation
from ledger.errors import FormatError, SignatureError
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import Envelope
from ledger.keys.trusted_keys import RETIRED, FixedThreshold, TrustedKeys
from tests.keys import seeded_key
from tests.mutations import replace
from tests.unit.ledger.builders import KEYS, STRANGER, TRUSTED, at, receipt, verdict

OLD = KEYS["receipts"]
NEW = seeded_key(b"\x21" * 32, "receipts")
THIRD = seeded_key(b"\x22" * 32, "receipts")
OPERATOR = KEYS["operator"]


def rotation(new: SigningKey, old: SigningKey, by: SigningKey | None = None) -> Envelope:
    return sign_rotation(KeyEntry(new.role, new.public, at(0), replaces=old.key_id), new, by or old)


def rotated(history: KeyHistory, index: int, envelope: Envelope) -> KeyHistory:
    return history.after(index, history.open(index, envelope))


HISTORY = rotated(KeyHistory.of(TRUSTED), 10, rotation(NEW, OLD))


def test_each_key_is_valid_in_its_own_interval() -> None:
    by_old, by_new = sign_document(receipt(), OLD), sign_document(receipt(), NEW)
    for index in (0, 9):
        assert HISTORY.open(index, by_old) == receipt()
        with pytest.raises(SignatureError):
            HISTORY.open(index, by_new)
    for index in (11, 500):
        assert HISTORY.open(index, by_new) == receipt()
        with pytest.raises(SignatureError):
            HISTORY.open(index, by_old)


def test_how_many_operators_it_takes_does_not_change() -> None:
    strict = replace(TRUSTED, threshold=FixedThreshold(((0, 2),)))
    assert rotated(KeyHistory.of(strict), 10, rotation(NEW, OLD)).at(11).threshold == strict.threshold


def test_other_roles_are_left_alone() -> None:
    assert HISTORY.open(500, sign_document(verdict(1, 0), KEYS["auditor"])) == verdict(1, 0)


def test_trust_goes_on_from_successor_to_successor() -> None:
    history = rotated(HISTORY, 20, rotation(THIRD, NEW))
    assert history.open(21, sign_document(receipt(), THIRD)) == receipt()
    assert [found.index for found in history.rotations] == [10, 20]
    with pytest.raises(SignatureError):
        history.open(21, sign_document(receipt(), NEW))


def test_a_rotation_needs_the_new_key_and_the_old_one_or_an_operator() -> None:
    history = KeyHistory.of(TRUSTED)
    assert rotated(history, 3, rotation(NEW, OLD, by=OPERATOR)).rotations
    entry = KeyEntry("receipts", NEW.public, at(0), replaces=OLD.key_id)
    only_old = Envelope.from_document(
        sign_document(entry, OLD).to_document()  # the new key has signed nothing: its private half may not exist
    )
    for envelope in (
        only_old,
        sign_document(entry, NEW),
        rotation(NEW, OLD, by=KEYS["auditor"]),
        rotation(NEW, OLD, by=STRANGER),
    ):
        with pytest.raises(SignatureError):
            history.open(3, envelope)


def test_no_key_makes_itself_an_operator() -> None:
    intruder = seeded_key(b"\x66" * 32, "operator")
    entry = KeyEntry("operator", intruder.public, at(0), replaces=OPERATOR.key_id)
    for envelope in (sign_document(entry, intruder), sign_rotation(entry, intruder, KEYS["receipts"])):
        with pytest.raises(SignatureError):
            KeyHistory.of(TRUSTED).open(3, envelope)


def test_a_retired_key_cannot_name_a_successor_nor_come_back() -> None:
    with pytest.raises(SignatureError):
        HISTORY.open(11, rotation(THIRD, OLD))
    with pytest.raises(FormatError):
        rotated(HISTORY, 20, rotation(OLD, NEW, by=OPERATOR))
    with pytest.raises(FormatError):
        rotation(OLD, OLD)


def test_the_log_key_is_checked_by_the_size_of_what_it_signs() -> None:
    new = seeded_key(b"\x23" * 32, "log")
    history = rotated(KeyHistory.of(TRUSTED), 10, rotation(new, KEYS["log"]))
    history.check_log_key(KEYS["log"].public, 0)
    history.check_log_key(KEYS["log"].public, 10)
    history.check_log_key(new.public, 11)
    with pytest.raises(SignatureError):
        history.check_log_key(KEYS["log"].public, 12)
    with pytest.raises(SignatureError):
        history.check_log_key(new.public, 10)


def test_a_key_entry_without_a_rotation_reads_as_before() -> None:
    plain = KeyEntry("receipts", OLD.public, at(0))
    assert "replaces" not in plain.to_document()
    assert KeyEntry.from_document(plain.to_document()) == plain
    for bad in (None, "ed25519:ff", 7, OLD.key_id.upper()):
        with pytest.raises(FormatError, match="replaces"):
            KeyEntry.from_document(plain.to_document() | {"replaces": bad})
    full = replace(plain, replaces=NEW.key_id)
    assert KeyEntry.from_document(full.to_document()) == full


def test_retired_keys_are_read_where_old_entries_are_checked(tmp_path: Path) -> None:
    NEW.publish(tmp_path)
    assert TrustedKeys.load(tmp_path).keys("receipts") == (NEW.public,)
    OLD.publish(tmp_path / RETIRED)
    NEW.publish(tmp_path / RETIRED)
    assert TrustedKeys.load(tmp_path, retired=False).keys("receipts") == (NEW.public,)
    assert TrustedKeys.load(tmp_path).keys("receipts") == (NEW.public, OLD.public)
