"""Keys on disk. These tests write to a temporary folder: a key file is what they are about."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from ledger.errors import FormatError, KeyFileError, SignatureError
from ledger.keys.ed25519 import ROLES, PublicKey, SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from tests.keys import seeded_key
from tests.unit.ledger.builders import KEYS

# RFC 8032 §7.1, test 1
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
SIGNATURE = bytes.fromhex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
)


def test_signatures_are_those_of_rfc_8032() -> None:
    key = seeded_key(SEED, "log")
    assert key.public.raw == PUBLIC
    assert key.sign(b"") == SIGNATURE
    key.public.verify(b"", SIGNATURE)


def test_a_key_id_is_the_sha_256_of_the_raw_key() -> None:
    key = PublicKey(PUBLIC)
    assert key.key_id == "ed25519:21fe31dfa154a261626bf854046fd2271b7bed4b6abe45aa58877ef47f9721b9"


@pytest.mark.parametrize("signature", [b"", SIGNATURE[:-1], bytes(64), SIGNATURE + b"\0"])
def test_a_wrong_signature_raises_one_error(signature: bytes) -> None:
    with pytest.raises(SignatureError):
        PublicKey(PUBLIC).verify(b"", signature)
    with pytest.raises(SignatureError):
        PublicKey(PUBLIC).verify(b"other", SIGNATURE)


def test_a_key_is_created_once_for_its_owner_alone_and_then_loaded(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "receipts.pem"
    created = SigningKey.load_or_create(path, "receipts")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert SigningKey.load_or_create(path, "receipts").public == created.public
    assert [file.name for file in path.parent.iterdir()] == ["receipts.pem"]


def test_processes_that_start_at_once_end_up_with_one_key(tmp_path: Path) -> None:
    path, gate = tmp_path / "log.pem", threading.Barrier(8)

    def start(_: int) -> str:
        gate.wait()
        return SigningKey.load_or_create(path, "log").key_id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(8)))) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "log.pem"
    SigningKey.load_or_create(path, "log")
    path.chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        SigningKey.load_or_create(path, "log")


def _private(data: bytes, path: Path) -> Path:
    path.touch(0o600)
    path.write_bytes(data)
    return path


def test_a_file_that_is_no_ed25519_key_is_refused(tmp_path: Path) -> None:
    rsa = generate_private_key(65537, 2048)
    pem = rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for place, data in enumerate((b"", b"junk", b"\xff" * 40, pem)):
        with pytest.raises(KeyFileError):
            SigningKey.load(_private(data, tmp_path / f"{place}.pem"), "log")
    with pytest.raises(KeyFileError):
        SigningKey.load(tmp_path, "log")
    with pytest.raises(FormatError, match="Ed25519"):
        PublicKey.from_pem(rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def test_a_key_that_cannot_be_created_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(KeyFileError, match="file"):
        SigningKey.load_or_create(tmp_path / "file" / "log.pem", "log")


def test_published_keys_are_trusted_for_their_own_role_only(tmp_path: Path) -> None:
    second = SigningKey.generate("receipts")
    for key in (*KEYS.values(), second):
        path = key.publish(tmp_path)
        assert path == key.publish(tmp_path)  # again: nothing changes
        assert stat.S_IMODE(path.stat().st_mode) & ~0o644 == 0
    trusted = TrustedKeys.load(tmp_path)
    assert set(trusted.keys("receipts")) == {KEYS["receipts"].public, second.public}
    for role in ROLES:
        assert KEYS[role].public in trusted.keys(role)
        assert [other for other in ROLES if trusted.find(other, KEYS[role].key_id)] == [role]
    assert trusted.find("auditor", KEYS["log"].key_id) is None
    assert trusted.find("log", KEYS["log"].key_id) == KEYS["log"].public


def test_a_role_pub_file_of_openssl_is_loaded_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "operator.pub").write_bytes(KEYS["operator"].public.to_pem())
    (tmp_path / "operators.pub").write_bytes(b"of another user")
    (tmp_path / "log.pem").write_bytes(b"private")
    assert TrustedKeys.load(tmp_path).by_role == TrustedKeys.of(KEYS["operator"]).by_role
    (tmp_path / "auditor-2.pub").write_bytes(b"junk")
    with pytest.raises(KeyFileError, match=r"auditor-2\.pub"):
        TrustedKeys.load(tmp_path)
    with pytest.raises(KeyFileError):
        TrustedKeys.load(tmp_path / "missing")


def test_a_published_file_that_holds_another_key_is_left_alone(tmp_path: Path) -> None:
    path = KEYS["log"].publish(tmp_path)
    os.truncate(path, 5)
    with pytest.raises(KeyFileError):
        KEYS["log"].publish(tmp_path)


def test_a_signing_key_never_shows_its_secret() -> None:
    assert SEED.hex() not in repr(seeded_key(SEED, "log"))
    with pytest.raises(FormatError, match="role"):
        seeded_key(SEED, "root")


@pytest.mark.parametrize("length", [0, 63, 65, 128])
def test_a_signature_of_another_length_is_none(length: int) -> None:
    key, message = SigningKey.generate("log"), b"checkpoint"
    signature = key.sign(message)
    # Bytes moved from the signature to the message would make the same bytes for a careless verifier.
    cut, rest = (signature + message)[:length], (signature + message)[length:]
    with pytest.raises(SignatureError):
        key.public.verify(rest, cut)


def test_a_key_of_small_order_has_signed_nothing() -> None:
    identity = b"\x01" + bytes(31)  # with it, R = identity and s = 0 solve the equation of RFC 8032 for every message
    with pytest.raises(SignatureError):
        PublicKey(identity).verify(b"any message", identity + bytes(32))
