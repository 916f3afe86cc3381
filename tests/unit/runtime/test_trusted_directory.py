"""Trusted keys that follow their directory."""

from __future__ import annotations

from pathlib import Path

from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from services.runtime.trusted_directory import TrustedDirectory

FIRST, SECOND = (SigningKey.from_seed(bytes([number]) * 32, "receipts") for number in (1, 2))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_trusted_as_soon_as_it_is_published_and_no_longer_once_it_is_removed(tmp_path: Path) -> None:
    trusted = TrustedKeys(TrustedDirectory(tmp_path, Clock()))
    assert trusted.keys("receipts") == ()
    path = FIRST.publish(tmp_path)
    assert trusted.keys("receipts") == (FIRST.public,)
    path.unlink()
    assert trusted.keys("receipts") == ()


def test_a_key_rewritten_in_place_is_noticed_within_a_second(tmp_path: Path) -> None:
    clock = Clock()
    path = FIRST.publish(tmp_path)
    trusted = TrustedKeys(TrustedDirectory(tmp_path, clock))
    assert trusted.keys("receipts") == (FIRST.public,)
    path.write_bytes(SECOND.public.to_pem() + b"\n")  # the directory's own time stays
    clock.now = 1.0
    assert trusted.keys("receipts") == (SECOND.public,)


def test_a_file_that_is_no_key_leaves_the_keys_as_they_were(tmp_path: Path) -> None:
    FIRST.publish(tmp_path)
    trusted = TrustedKeys(TrustedDirectory(tmp_path, Clock()))
    (tmp_path / "receipts-junk.pub").write_text("no key")
    assert trusted.keys("receipts") == (FIRST.public,)
