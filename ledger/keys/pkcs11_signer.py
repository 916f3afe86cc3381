"""Ed25519 keys in a device behind PKCS#11 (version 3: CKK_EC_EDWARDS, CKM_EDDSA), named by a URI (RFC 7512).

    pkcs11:token=kolm;object=log?module-path=/usr/lib/softhsm/libsofthsm2.so

The private key never leaves the device. It was made there before, with its public key under the same label.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pkcs11
from pkcs11 import Attribute, Mechanism, ObjectClass

from ledger.errors import FormatError, KeyFileError, SignatureError, SignerUnavailable
from ledger.keys.ed25519 import ROLES, PublicKey
from ledger.keys.key_file import publish_key

_PROBE = b"kolm: does this device sign with the key that it shows?"


@dataclass(frozen=True, slots=True)
class Pkcs11Uri:
    """The parts of a URI. `object` is the label of both keys."""

    module: str
    token: str
    object: str

    @classmethod
    def parse(cls, text: str) -> Pkcs11Uri:
        """Raises KeyFileError for anything but the three parts."""
        path, _, query = text.removeprefix("pkcs11:").partition("?")
        parts = {}
        for piece in [*path.split(";"), *query.split("&")]:
            name, equals, value = piece.partition("=")
            if piece and (not equals or name in parts):
                raise KeyFileError(f"{text}: expected each part once, as name=value, got {piece!r}")
            parts[name] = unquote(value)
        parts.pop("", None)
        if parts.pop("type", "private") != "private":
            raise KeyFileError(f"{text}: expected type=private or none")
        if parts.keys() != {"token", "object", "module-path"} or not all(parts.values()):
            raise KeyFileError(f"{text}: expected pkcs11:token=LABEL;object=LABEL?module-path=LIBRARY")
        return cls(parts["module-path"], parts["token"], parts["object"])


class Pkcs11Signer:
    """`signer.Signer` on a device, with one session and one signature at a time. The next signature after a failure
    opens a new session.
    """

    def __init__(self, uri: Pkcs11Uri, role: str, pin: str) -> None:
        if role not in ROLES:
            raise FormatError("role", f"expected one of {', '.join(ROLES)}")
        self._uri = uri
        self._pin = pin
        self._lock = threading.Lock()
        self.role = role
        self._private, self.public = self._opened()

    @classmethod
    def open(cls, uri: str, role: str, pin: bytes | None) -> Pkcs11Signer:
        """Raises KeyFileError if library, token, PIN or keys are missing or do not belong together."""
        parsed = Pkcs11Uri.parse(uri)
        if pin is None:
            raise KeyFileError(f"{uri}: a token needs its PIN; name a file with it (--key-passphrase-file)")
        try:
            signer = cls(parsed, role, pin.decode("utf-8"))
            signer.public.verify(_PROBE, signer.sign(_PROBE))
        except (pkcs11.PKCS11Error, SignerUnavailable, UnicodeDecodeError) as error:
            raise KeyFileError(f"cannot use the {role} key {uri}: {_device_error(error)}") from error
        except SignatureError:
            raise KeyFileError(f"{uri}: the device signs with another key than the public key of this label") from None
        return signer

    @property
    def key_id(self) -> str:
        return self.public.key_id

    def sign(self, message: bytes) -> bytes:
        with self._lock:
            try:
                if self._private is None:
                    self._private = self._reopened()
                return bytes(self._private.sign(message, mechanism=Mechanism.EDDSA))
            except (pkcs11.PKCS11Error, KeyFileError) as error:
                self._private = None
                raise SignerUnavailable(
                    f"the device with the {self.role} key does not sign: {_device_error(error)}"
                ) from error

    def publish(self, directory: Path) -> Path:
        return publish_key(self.public.to_pem(), self.key_id, self.role, directory)

    def __repr__(self) -> str:
        return f"Pkcs11Signer(role={self.role!r}, key_id={self.key_id!r})"

    def _opened(self) -> tuple[Any, PublicKey]:
        """Log in and find both keys. Raises PKCS11Error, KeyFileError."""
        token = pkcs11.lib(self._uri.module).get_token(token_label=self._uri.token)
        try:
            session = token.open(user_pin=self._pin)
        except pkcs11.UserAlreadyLoggedIn:  # by another signer of this process: a login is valid for the whole process
            session = token.open()
        public = session.get_key(object_class=ObjectClass.PUBLIC_KEY, label=self._uri.object)
        private = session.get_key(object_class=ObjectClass.PRIVATE_KEY, label=self._uri.object)
        point = bytes(public[Attribute.EC_POINT])
        raw = point[2:] if point[:2] == b"\x04\x20" and len(point) == 34 else point  # in DER, or as it is
        if len(raw) != 32:
            raise KeyFileError(f"the key {self._uri.object!r} of the token {self._uri.token!r} is not an Ed25519 key")
        return private, PublicKey(raw)

    def _reopened(self) -> Any:
        """The same private key in a new session. Raises SignerUnavailable for another key, and as `_opened`."""
        private, found = self._opened()
        if found != self.public:
            raise SignerUnavailable(f"the device holds {found.key_id} now, and held {self.key_id} before")
        return private


def _device_error(error: Exception) -> str:
    return f"{type(error).__name__}{f': {error}' if str(error) else ''}"
