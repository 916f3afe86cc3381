"""Trusted keys of a directory: whose files count, and when."""

from pathlib import Path

import pytest

from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import sign_rotation
from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from services.runtime.trusted_directory import TrustedDirectory
from tests.keys import seeded_key
from tests.unit.ledger.builders import at

FIRST, SECOND = (seeded_key(bytes([number]) * 32, "receipts") for number in (1, 2))
OTHER_ROLE = seeded_key(bytes([3]) * 32, "auditor")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_key_of_a_role_is_trusted_at_once_and_no_longer_once_it_is_removed(tmp_path: Path) -> None:
    trusted = TrustedKeys(TrustedDirectory(tmp_path, Clock()))
    assert trusted.keys("receipts") == ()
    path = FIRST.publish(tmp_path)
    assert trusted.keys("receipts") == (FIRST.public,)
    path.unlink()
    assert trusted.keys("receipts") == ()


def test_a_key_that_was_removed_may_come_back_and_no_other_in_its_place(tmp_path: Path) -> None:
    path = FIRST.publish(tmp_path)
    trusted = TrustedKeys(TrustedDirectory(tmp_path, Clock()))
    path.unlink()
    assert trusted.keys("receipts") == ()
    SECOND.publish(tmp_path)
    assert trusted.keys("receipts") == ()
    FIRST.publish(tmp_path)
    assert trusted.keys("receipts") == (FIRST.public,)


def test_a_second_key_of_a_role_is_refused_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FIRST.publish(tmp_path)
    OTHER_ROLE.publish(tmp_path)
    clock = Clock()
    trusted = TrustedKeys(TrustedDirectory(tmp_path, clock))
    SECOND.publish(tmp_path)
    for second in range(30):
        clock.now = float(second)
        assert trusted.keys("receipts") == (FIRST.public,)
    (line,) = caplog.messages
    assert f"refused the key {SECOND.key_id} of role receipts" in line
    assert "start this service again" in line
    assert set(TrustedDirectory(tmp_path)["receipts"]) == {FIRST.public, SECOND.public}


def test_a_key_rewritten_in_place_is_noticed_within_a_second_and_refused(tmp_path: Path) -> None:
    clock = Clock()
    path = FIRST.publish(tmp_path)
    trusted = TrustedKeys(TrustedDirectory(tmp_path, clock))
    assert trusted.keys("receipts") == (FIRST.public,)
    path.write_bytes(SECOND.public.to_pem() + b"\n")  # the directory's own time stays
    clock.now = 1.0
    assert trusted.keys("receipts") == ()


def rotation(old: SigningKey, new: SigningKey, *signers: SigningKey) -> bytes:
    return sign_rotation(KeyEntry(new.role, new.public, at(1), replaces=old.key_id), new, *signers).to_bytes()


def test_a_key_that_replaces_a_trusted_one_in_the_log_is_taken_once_the_log_says_so(tmp_path: Path) -> None:
    FIRST.publish(tmp_path)
    entries, clock = list[tuple[int, bytes]](), Clock()
    trusted = TrustedKeys(TrustedDirectory(tmp_path, clock, key_entries=lambda: entries))
    SECOND.publish(tmp_path)
    assert trusted.keys("receipts") == (FIRST.public,)
    entries += [(3, b"junk"), (4, rotation(FIRST, SECOND))]  # the second without a valid signature
    clock.now = 10.0
    assert trusted.keys("receipts") == (FIRST.public,)
    entries.append((5, rotation(FIRST, SECOND, FIRST)))
    clock.now = 20.0
    assert set(trusted.keys("receipts")) == {FIRST.public, SECOND.public}


def test_the_log_is_asked_about_nothing_but_a_key_that_would_be_refused(tmp_path: Path) -> None:
    asked: list[int] = []

    def entries() -> list[tuple[int, bytes]]:
        asked.append(1)
        return []

    FIRST.publish(tmp_path)
    clock = Clock()
    trusted = TrustedKeys(TrustedDirectory(tmp_path, clock, key_entries=entries))
    OTHER_ROLE.publish(tmp_path)
    clock.now = 60.0
    assert trusted.keys("auditor") == (OTHER_ROLE.public,)
    assert asked == []


def test_ones_own_key_needs_no_file(tmp_path: Path) -> None:
    trusted = TrustedKeys(TrustedDirectory(tmp_path, Clock(), own=FIRST))
    SECOND.publish(tmp_path)
    assert trusted.keys("receipts") == (FIRST.public,)


def test_a_threshold_rises_at_once_and_falls_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = Clock(), tmp_path / "operator.threshold"
    trusted = TrustedDirectory(tmp_path, clock).trusted()
    for seconds, text, expected in (
        (1.0, "2", 2),
        (2.0, "1", 2),
        (3.0, "2\n3 from 9", 3),
        (4.0, "3", 3),
        (5.0, "2", 3),
    ):
        file.write_text(text)
        clock.now = seconds
        assert trusted.threshold.at(None) == expected, text
    assert len(caplog.messages) == 2
    assert TrustedDirectory(tmp_path).at(None) == 2


def test_a_file_that_is_no_key_leaves_the_keys_as_they_were(tmp_path: Path) -> None:
    FIRST.publish(tmp_path)
    trusted = TrustedKeys(TrustedDirectory(tmp_path, Clock()))
    (tmp_path / "receipts-junk.pub").write_text("no key")
    assert trusted.keys("receipts") == (FIRST.public,)


def test_a_log_that_is_away_is_one_line_and_decides_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    away, clock = [True], Clock()

    def entries() -> list[tuple[int, bytes]]:
        if away:
            raise ConnectionError("no server answers")
        return [(5, rotation(FIRST, SECOND, FIRST))]

    FIRST.publish(tmp_path)
    trusted = TrustedKeys(TrustedDirectory(tmp_path, clock, key_entries=entries))
    SECOND.publish(tmp_path)
    for clock.now in (10.0, 20.0, 30.0):
        assert trusted.keys("receipts") == (FIRST.public,)
    away.clear()
    clock.now = 40.0
    assert set(trusted.keys("receipts")) == {FIRST.public, SECOND.public}
    expected = (
        "cannot ask the ledger whose keys were replaced",
        "trusting the rotated key",
        "can ask the ledger whose keys were",
    )
    assert all(line.startswith(words) for line, words in zip(caplog.messages, expected, strict=True)), caplog.messages
