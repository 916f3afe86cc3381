"""A start on a full disk: what is there with the same bytes is not written again."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ledger.durable_file import keep_durably
from ledger.errors import KeyFileError
from ledger.keys.ed25519 import SigningKey
from services.runtime.server import ready_file
from tests.unit.ledger.builders import KEYS, STRANGER


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, the disk has no room for another file."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    return lambda: monkeypatch.setattr(tempfile, "mkstemp", full)


def test_keys_that_are_there_are_opened_and_published(tmp_path: Path, fill: Callable[[], None]) -> None:
    key = SigningKey.load_or_create(tmp_path / "receipts.pem", "receipts")
    published = key.publish(tmp_path / "public")
    fill()
    again = SigningKey.load_or_create(tmp_path / "receipts.pem", "receipts")
    assert again.public == key.public
    assert again.publish(tmp_path / "public") == published
    with pytest.raises(KeyFileError):
        STRANGER.publish(tmp_path / "public")
    with pytest.raises(KeyFileError):
        SigningKey.load_or_create(tmp_path / "other.pem", "receipts")


def test_another_key_under_the_name_is_refused_all_the_same(tmp_path: Path, fill: Callable[[], None]) -> None:
    path = KEYS["log"].publish(tmp_path)
    path.write_bytes(STRANGER.public.to_pem())
    fill()
    with pytest.raises(KeyFileError):
        KEYS["log"].publish(tmp_path)


def test_a_file_is_kept_or_written(tmp_path: Path, fill: Callable[[], None]) -> None:
    path = tmp_path / "folder" / "vkey"
    for data in (b"one", b"two"):
        keep_durably(path, data)
        assert path.read_bytes() == data
    fill()
    keep_durably(path, b"two")
    with pytest.raises(OSError, match="No space"):
        keep_durably(path, b"three")
    assert path.read_bytes() == b"two"


def test_a_server_that_cannot_write_its_ready_file_serves(tmp_path: Path, fill: Callable[[], None]) -> None:
    path = tmp_path / "ready"
    path.write_text("127.0.0.1:1\n")  # of a server that was killed
    with ready_file(path / "of a file that is no folder", "127.0.0.1:2"):
        pass
    fill()
    with ready_file(path, "127.0.0.1:2"):
        assert not path.exists()
    path.write_text("127.0.0.1:2\n")
    with ready_file(path, "127.0.0.1:2"):
        assert path.read_text() == "127.0.0.1:2\n"
    assert not path.exists()
