"""Keys in files and in devices give the same signatures."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pkcs11
import pytest
from prometheus_client import CollectorRegistry

from ledger.errors import KeyFileError, SignerUnavailable
from ledger.keys.pkcs11_signer import Pkcs11Signer, Pkcs11Uri
from ledger.keys.signer import open_signer, read_passphrase
from ledger.tree.checkpoint import open_checkpoint
from services.client.ledger.ledger import LedgerClient
from services.ledger.__main__ import opened_servicer
from services.ledger.settings import LedgerSettings
from services.runtime.process import CannotStart
from tests.cli import kolm
from tests.integration.ledger_service.serving_ledger import serving_ledger
from tests.softhsm import MODULE, Token
from tests.unit.ledger.builders import KEYS, ORIGIN, receipt_id, signed_receipt


def test_a_token_signs_ed25519(softhsm: Token, tmp_path: Path) -> None:
    signer = open_signer(softhsm.uri("log"), "log", softhsm.pin_file)
    signature = signer.sign(b"message")
    assert len(signature) == 64
    signer.public.verify(b"message", signature)
    assert signer.sign(b"message") == signature
    published = signer.publish(tmp_path)
    assert published.name == f"log-{signer.key_id.removeprefix('ed25519:')[:16]}.pub"
    assert published.read_bytes() == signer.public.to_pem()
    assert "246810" not in repr(signer)


@pytest.fixture
def settings(softhsm: Token, tmp_path: Path) -> LedgerSettings:
    KEYS["receipts"].publish(tmp_path / "trusted")
    open_signer(softhsm.uri("log"), "log", softhsm.pin_file).publish(tmp_path / "trusted")
    return LedgerSettings(
        data_dir=tmp_path, origin=ORIGIN, key_file=softhsm.uri("log"), key_passphrase_file=softhsm.pin_file
    )


@pytest.fixture
def address(settings: LedgerSettings) -> Iterator[str]:
    with serving_ledger(settings) as (served, _):
        yield served.address


def test_a_ledger_and_an_operator_sign_with_keys_in_a_token(softhsm: Token, tmp_path: Path, address: str) -> None:
    log = open_signer(softhsm.uri("log"), "log", softhsm.pin_file).public
    with LedgerClient.connect(address, wait=60) as client:
        client.append(signed_receipt(0))
        assert open_checkpoint(client.checkpoint().note, [log], ORIGIN).size == 1
    assert not (tmp_path / "keys" / "log.pem").exists()

    run = partial(kolm, environment={"KOLM_LEDGER": address, "KOLM_DATA_DIR": tmp_path})
    key = ("--key", softhsm.uri("operator"), "--key-passphrase-file", softhsm.pin_file)
    assert run("retention", "--days", "9", *key).code == 0
    assert run("receipts", "export", receipt_id(0), tmp_path / "r.cose", "--format", "cose", *key).code == 0
    done = run("ledger", "verify", "--json")
    assert (done.code, done.document["kinds"]) == (0, {"receipt": 1, "retention": 1})


def test_a_key_in_a_token_is_replaced_by_another_one(settings: LedgerSettings, softhsm: Token, tmp_path: Path) -> None:
    _append(settings, 0)
    named = ("--data-dir", tmp_path, "--key-passphrase-file", softhsm.pin_file)
    rotate = partial(kolm, "ledger", "rotate-key", "log", *named)
    old, new = str(softhsm.uri("log")), str(softhsm.uri("log-2"))
    for wrong in (("--key-file", old), ("--key-file", old, "--new-key", old)):
        refused = rotate(*wrong)
        assert (refused.code, "--new-key" in refused.err) == (2, True), refused.err
    done = rotate("--key-file", old, "--new-key", new)
    assert (done.code, f"--key-file '{new}'" in done.err) == (0, True), done.err
    again = rotate("--key-file", old, "--new-key", new, "--json")  # as after an interruption
    assert again.document["index"] == 1

    with pytest.raises(CannotStart):
        _append(settings, 1)
    _append(settings.model_copy(update={"key_file": softhsm.uri("log-2")}), 1)
    verified = kolm("ledger", "verify", "--database", tmp_path / "ledger.sqlite3", "--data-dir", tmp_path)
    assert verified.code == 0, verified.shown


def _append(settings: LedgerSettings, number: int) -> None:
    """A receipt, by a ledger that runs for it alone."""
    with serving_ledger(settings) as (served, _), LedgerClient.connect(served.address, wait=60) as client:
        client.append(signed_receipt(number))


def test_a_wrong_pin_a_missing_key_and_a_missing_library_are_said(softhsm: Token, tmp_path: Path) -> None:
    wrong = tmp_path / "pin"
    wrong.write_text("111111")
    arguments = ("--key", softhsm.uri("operator"), "--key-passphrase-file", wrong, "--data-dir", tmp_path)
    command = [sys.executable, "-m", "services.cli", "retention", "--days", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)  # this process may have logged in before
    assert (done.returncode, "PinIncorrect" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    with pytest.raises(KeyFileError, match="NoSuchKey"):
        open_signer(softhsm.uri("missing"), "log", softhsm.pin_file)
    with pytest.raises(KeyFileError, match="NoSuchToken"):
        open_signer(Path(f"pkcs11:token=other;object=log?module-path={MODULE}"), "log", softhsm.pin_file)
    with pytest.raises(KeyFileError):
        open_signer(Path("pkcs11:token=kolm;object=log?module-path=/nothing.so"), "log", softhsm.pin_file)
    with pytest.raises(KeyFileError, match="--key-passphrase-file"):
        open_signer(softhsm.uri("log"), "log")


def test_a_ledger_does_not_start_without_its_device(settings: LedgerSettings) -> None:
    wrong = settings.model_copy(update={"key_file": Path(f"pkcs11:token=none;object=log?module-path={MODULE}")})
    with pytest.raises(CannotStart, match="NoSuchToken"), opened_servicer(wrong, CollectorRegistry()):
        pass


def test_a_signer_that_lost_its_session_opens_another(softhsm: Token) -> None:
    signer: Any = open_signer(softhsm.uri("log"), "log", softhsm.pin_file)

    class Gone:
        def sign(self, *_: object, **__: object) -> bytes:
            raise pkcs11.SessionHandleInvalid

    signer._private = Gone()
    with pytest.raises(SignerUnavailable, match="SessionHandleInvalid"):
        signer.sign(b"message")
    signer.public.verify(b"message", signer.sign(b"message"))


def test_a_token_that_came_back_with_another_key_signs_nothing(softhsm: Token) -> None:
    signer: Any = open_signer(softhsm.uri("log"), "log", softhsm.pin_file)
    signer.public, signer._private = KEYS["log"].public, None
    for _ in range(2):
        with pytest.raises(SignerUnavailable) as refused:
            signer.sign(b"message")
        assert KEYS["log"].public.key_id in str(refused.value)


def test_a_token_that_came_back_with_a_key_of_another_curve_signs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [bytes(32)]

    class Device:
        """Library, token, session and private key."""

        def get_token(self, **_: object) -> "Device":
            return self

        open = get_token

        def get_key(self, object_class: pkcs11.ObjectClass, **_: object) -> object:
            return {pkcs11.Attribute.EC_POINT: points[-1]} if object_class is pkcs11.ObjectClass.PUBLIC_KEY else self

        def sign(self, *_: object, **__: object) -> bytes:
            if points[-1] == bytes(32):
                points.append(bytes(57))
                raise pkcs11.SessionHandleInvalid
            return b"by another key"

    monkeypatch.setattr(pkcs11, "lib", lambda _: Device())
    signer = Pkcs11Signer(Pkcs11Uri("library", "token", "key"), "log", "246810")
    for _ in range(3):
        with pytest.raises(SignerUnavailable):
            signer.sign(b"message")


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ledger.keys.pkcs11_signer", None)
    pin = tmp_path / "pin"
    pin.write_text("1")
    with pytest.raises(KeyFileError):
        open_signer(Path("pkcs11:token=a;object=b?module-path=/c"), "log", pin)


def test_a_uri_has_three_parts() -> None:
    read = Pkcs11Uri.parse("pkcs11:token=my%20token;object=log;type=private?module-path=/usr/lib/x.so")
    assert read == Pkcs11Uri("/usr/lib/x.so", "my token", "log")
    for wrong in ("", "token=a", "token=a;object=b", "token=a;object=?module-path=/c", "token=a;token=b;object=c"):
        with pytest.raises(KeyFileError, match="pkcs11:"):
            Pkcs11Uri.parse(f"pkcs11:{wrong}")
    with pytest.raises(KeyFileError, match="type=private"):
        Pkcs11Uri.parse("pkcs11:token=a;object=b;type=cert?module-path=/c")
    with pytest.raises(KeyFileError):
        Pkcs11Signer.open("pkcs11:token=a", "log", b"1")


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
    with pytest.raises(KeyFileError):
        open_signer(encrypted, "log")
    with pytest.raises(KeyFileError):
        open_signer(plain, "log", secret)
    secret.write_text("another passphrase, long enough")
    with pytest.raises(KeyFileError):
        open_signer(encrypted, "log", secret)
    assert PASSPHRASE not in repr(open_signer(plain, "log"))


def test_a_short_passphrase_makes_no_key(tmp_path: Path, secret: Path) -> None:
    secret.write_text("short")
    with pytest.raises(KeyFileError):
        open_signer(tmp_path / "log.pem", "log", secret, create=True)
    assert not (tmp_path / "log.pem").exists()


def test_a_passphrase_file_has_to_be_there_and_hold_one(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        read_passphrase(tmp_path / "none")
    (tmp_path / "empty").write_text("\nsecond line")
    with pytest.raises(KeyFileError):
        read_passphrase(tmp_path / "empty")
