"""Encrypted key files: made, opened, refused; also as OpenSSL writes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ledger.errors import KeyFileError
from ledger.keys.signer import open_signer, read_passphrase

PASSPHRASE = "correct horse battery staple"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "passphrase"
    path.write_text(f"{PASSPHRASE}\r\nnot this line\n")
    return path


def test_a_key_is_made_encrypted_and_opens_with_its_passphrase(tmp_path: Path, secret: Path) -> None:
    path = tmp_path / "log.pem"
    made = open_signer(path, "log", secret, create=True)
    assert path.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert path.stat().st_mode & 0o777 == 0o600
    opened = open_signer(path, "log", secret)
    assert opened.key_id == made.key_id
    opened.public.verify(b"message", made.sign(b"message"))


@pytest.mark.parametrize("stretched", [("-scrypt",), ("-v2", "aes-256-cbc", "-iter", "600000")])
def test_a_key_that_openssl_encrypted_opens(tmp_path: Path, secret: Path, stretched: tuple[str, ...]) -> None:
    plain, path = tmp_path / "plain.pem", tmp_path / "log.pem"
    key_id = open_signer(plain, "log", create=True).key_id
    command = ["openssl", "pkcs8", "-topk8", *stretched, "-in", plain, "-out", path, "-passout", f"file:{secret}"]
    secret.write_text(f"{PASSPHRASE}\n")
    subprocess.run(command, check=True, capture_output=True)
    path.chmod(0o600)
    assert open_signer(path, "log", secret).key_id == key_id


def test_a_wrong_a_missing_and_a_needless_passphrase_say_what_to_do(tmp_path: Path, secret: Path) -> None:
    encrypted, plain = tmp_path / "encrypted.pem", tmp_path / "plain.pem"
    open_signer(encrypted, "log", secret, create=True)
    open_signer(plain, "log", create=True)
    with pytest.raises(KeyFileError, match="is encrypted; name the file with its passphrase"):
        open_signer(encrypted, "log")
    with pytest.raises(KeyFileError, match="is not encrypted, and a passphrase was given; encrypt it: openssl pkcs8"):
        open_signer(plain, "log", secret)
    secret.write_text("another passphrase, long enough")
    with pytest.raises(KeyFileError, match="does not open with this passphrase"):
        open_signer(encrypted, "log", secret)
    assert PASSPHRASE not in repr(open_signer(plain, "log"))


def test_a_short_passphrase_makes_no_key(tmp_path: Path, secret: Path) -> None:
    secret.write_text("short")
    with pytest.raises(KeyFileError, match="at least 16 bytes"):
        open_signer(tmp_path / "log.pem", "log", secret, create=True)
    assert not (tmp_path / "log.pem").exists()


def test_a_passphrase_file_has_to_be_there_and_hold_one(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot read the passphrase"):
        read_passphrase(tmp_path / "none")
    (tmp_path / "empty").write_text("\nsecond line")
    with pytest.raises(KeyFileError, match="is empty"):
        read_passphrase(tmp_path / "empty")
