"""Signers: Ed25519 private keys in a PEM file, which may be encrypted, or in a PKCS#11 device."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ledger.errors import KeyFileError
from ledger.keys.ed25519 import PublicKey, SigningKey

_URI = "pkcs11:"


class Signer(Protocol):
    """A private key that signs for one role. It is never shown. Thread-safe."""

    @property
    def role(self) -> str: ...

    @property
    def public(self) -> PublicKey: ...

    @property
    def key_id(self) -> str:
        """The identifier of the public key."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The signature, 64 bytes of Ed25519 (RFC 8032); deterministic. Raises SignerUnavailable if the key cannot be
        reached now; a later attempt may succeed.
        """
        ...

    def publish(self, directory: Path) -> Path:
        """Write the public key into a directory that TrustedKeys.load reads. Repeating it changes nothing."""
        ...


def open_signer(key: Path, role: str, passphrase_file: Path | None = None, *, create: bool = False) -> Signer:
    """Open the key in the file `key`, or in the device that `key` names as a PKCS#11 URI (RFC 7512).

    `passphrase_file` holds the passphrase of the file, or the PIN of the device. With `create`, a missing file is made,
    encrypted if there is a passphrase; a device's key has to exist. Raises KeyFileError.
    """
    passphrase = None if passphrase_file is None else read_passphrase(passphrase_file)
    if is_device(key):
        try:
            from ledger.keys.pkcs11_signer import Pkcs11Signer
        except ModuleNotFoundError:
            raise KeyFileError(f"{key}: a key in a device needs python-pkcs11, from the extra pkcs11") from None
        return Pkcs11Signer.open(str(key), role, passphrase)
    load = SigningKey.load_or_create if create else SigningKey.load
    return load(key, role, passphrase)


def is_device(key: Path) -> bool:
    """Whether `key` is the URI of a key in a device, which a Path leaves unchanged."""
    return str(key).startswith(_URI)


def read_passphrase(path: Path) -> bytes:
    """The first line of a file. Raises KeyFileError if it cannot be read or is empty."""
    try:
        line = path.read_bytes().split(b"\n", 1)[0].removesuffix(b"\r")
    except OSError as error:
        raise KeyFileError(f"cannot read the passphrase in {path}: {error.strerror}") from None
    if not line:
        raise KeyFileError(f"the passphrase file {path} is empty; expected the passphrase in its first line")
    return line
