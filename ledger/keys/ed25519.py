"""Ed25519 keys (RFC 8032): a public key that verifies, and a signing key in a private file."""

from __future__ import annotations

import hashlib
import os
import stat
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from ledger.encoding.text_forms import decode_base64, encode_base64
from ledger.errors import FormatError, KeyFileError, SignatureError
from ledger.keys.key_file import create_private_file, publish_key
from ledger.keys.key_scope import EVERYTHING, KeyScope

_SHORTEST_PASSPHRASE = 16
SIGNATURE_BYTES = 64

ROLES = ("receipts", "log", "auditor", "operator", "publisher", "witness")


class PublicKey:
    """An Ed25519 public key; `raw` is its 32 bytes, base64 in documents. `scope` limits the trust in it, and is no part
    of its identity.
    """

    __slots__ = ("raw", "scope")

    def __init__(self, raw: bytes, scope: KeyScope = EVERYTHING) -> None:
        if len(raw) != 32:
            raise FormatError("public_key", f"expected 32 bytes, got {len(raw)}")
        self.raw, self.scope = raw, scope

    def scoped(self, scope: KeyScope) -> PublicKey:
        """A copy of this key with another scope."""
        return PublicKey(self.raw, scope)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"PublicKey({self.key_id})"

    @property
    def key_id(self) -> str:
        """`ed25519:<64 hex digits of the SHA-256 of the raw key>`."""
        return _key_id(self.raw)

    def verify(self, message: bytes, signature: bytes) -> None:
        """Raises SignatureError unless `signature` is by this key over `message`.

        Uses libsodium, which takes half of OpenSSL's time and lets other threads run. It is stricter than RFC 8032
        (keys and commitments of small order never verify) and is used for all verification, because two libraries would
        disagree.
        """
        try:
            if len(signature) != SIGNATURE_BYTES:
                raise BadSignatureError
            crypto_sign_open(signature + message, self.raw)
        except BadSignatureError:
            raise SignatureError(f"the signature is not one by {self.key_id}") from None

    def written(self) -> str:
        return encode_base64(self.raw)

    @classmethod
    def read(cls, text: object) -> PublicKey:
        """Raises FormatError for anything but the base64 of 32 bytes."""
        return cls(decode_base64(text, "public_key"))

    def to_pem(self) -> bytes:
        """SubjectPublicKeyInfo in PEM, as `openssl pkey -pubout` writes it, below the lines of its scope."""
        key = Ed25519PublicKey.from_public_bytes(self.raw)
        return self.scope.to_lines() + key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @classmethod
    def from_pem(cls, data: bytes) -> PublicKey:
        """Raises FormatError for anything but a PEM file of one Ed25519 public key, with its scope above it."""
        scope, pem = KeyScope.from_file(data)
        try:
            key = load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise FormatError("public_key", f"is not PEM: {error}") from None
        if not isinstance(key, Ed25519PublicKey):
            raise FormatError("public_key", "expected an Ed25519 key")
        return cls(key.public_bytes_raw(), scope)


class SigningKey:
    """An Ed25519 private key that signs for one role. Never printed; written to its own file alone."""

    __slots__ = ("_private", "public", "role")

    def __init__(self, private: Ed25519PrivateKey, role: str) -> None:
        if role not in ROLES:
            raise FormatError("role", f"expected one of {', '.join(ROLES)}")
        self._private = private
        self.role = role
        self.public = PublicKey(private.public_key().public_bytes_raw())

    @classmethod
    def generate(cls, role: str) -> SigningKey:
        return cls(Ed25519PrivateKey.generate(), role)

    @classmethod
    def load_or_create(cls, path: Path, role: str, passphrase: bytes | None = None) -> SigningKey:
        """The key in the PKCS#8 PEM file at `path`, created there (mode 0600, its folder 0700) if it is missing,
        encrypted if there is a `passphrase`. Processes that start at the same time get the same key. A crash leaves no
        file or a complete file. Raises KeyFileError if the file is malformed, or readable by group or others.
        """
        if not path.exists():
            created = cls.generate(role)
            pem = created._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, _encryption(passphrase))
            create_private_file(path, pem)  # the file of a faster process is kept
        return cls.load(path, role, passphrase)

    @classmethod
    def load(cls, path: Path, role: str, passphrase: bytes | None = None) -> SigningKey:
        """The key in the PKCS#8 PEM file at `path`, which is encrypted if and only if there is a passphrase. Raises
        KeyFileError.
        """
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                pem = file.read()
        except OSError as error:
            raise KeyFileError(f"cannot read the {role} key {path}: {error.strerror}") from None
        if mode & 0o077:
            raise KeyFileError(f"others can read the {role} key {path} (mode {mode:04o}); run chmod 600 on it")
        try:
            private = load_pem_private_key(pem, password=passphrase)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise KeyFileError(_not_loaded(pem, path, role, passphrase)) from None
        if not isinstance(private, Ed25519PrivateKey):
            raise KeyFileError(f"the {role} key {path} is not an Ed25519 key")
        return cls(private, role)

    @property
    def key_id(self) -> str:
        return self.public.key_id

    def sign(self, message: bytes) -> bytes:
        """The signature, 64 bytes; deterministic (RFC 8032)."""
        return self._private.sign(message)

    def publish(self, directory: Path) -> Path:
        """Write the public key into a directory that TrustedKeys.load reads. Repeating it changes nothing."""
        return publish_key(self.public.to_pem(), self.key_id, self.role, directory)

    def __repr__(self) -> str:
        return f"SigningKey(role={self.role!r}, key_id={self.key_id!r})"


def _encryption(passphrase: bytes | None) -> KeySerializationEncryption:
    """Raises KeyFileError for a short passphrase: PKCS#8 stretches it by 2,048 rounds only, so it has to be long."""
    if passphrase is None:
        return NoEncryption()
    if len(passphrase) < _SHORTEST_PASSPHRASE:
        raise KeyFileError(
            f"expected a passphrase of at least {_SHORTEST_PASSPHRASE} bytes for a new key: openssl rand -base64 24"
        )
    return BestAvailableEncryption(passphrase)


def _not_loaded(pem: bytes, path: Path, role: str, passphrase: bytes | None) -> str:
    encrypted = b"BEGIN ENCRYPTED PRIVATE KEY" in pem
    if encrypted and passphrase is None:
        return f"the {role} key {path} is encrypted; name the file with its passphrase (--key-passphrase-file)"
    if encrypted:
        return f"the {role} key {path} does not open with this passphrase"
    if passphrase is not None and b"BEGIN PRIVATE KEY" in pem:
        return (
            f"the {role} key {path} is not encrypted, and a passphrase was given; encrypt it: "
            f"openssl pkcs8 -topk8 -scrypt -in {path} -out NEW -passout file:PASSPHRASE_FILE, then chmod 600"
        )
    return f"the {role} key {path} is not a PEM private key"


@lru_cache(maxsize=1024)
def _key_id(raw: bytes) -> str:
    return "ed25519:" + hashlib.sha256(raw).hexdigest()
