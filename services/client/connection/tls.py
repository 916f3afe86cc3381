"""TLS of a client: the authorities that it trusts, and its own certificate.

A process has one identity, as it has one time zone: the variables KOLM_TLS_CA, KOLM_TLS_CERT and KOLM_TLS_KEY. Flags
and settings of that name write them, so that every connection of the process has them, and those of its children.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

CA, CERT, KEY = "KOLM_TLS_CA", "KOLM_TLS_CERT", "KOLM_TLS_KEY"


class TlsFilesInvalid(OSError):
    """PEM files are missing, unreadable, or do not belong together."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files: `ca`, the authorities that servers are checked against (None: the well-known ones); `cert`, this
    client's own certificate and what leads to its authority, with its `key`, for servers that ask for one.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @classmethod
    def of_process(cls) -> Self:
        """From the environment."""
        ca, cert, key = (Path(named) if (named := os.environ.get(name)) else None for name in (CA, CERT, KEY))
        return cls(ca, cert, key)

    def for_process(self) -> None:
        """Makes this the identity of the process where it says anything; later connections have it."""
        for name, path in ((CA, self.ca), (CERT, self.cert), (KEY, self.key)):
            if path is not None:
                os.environ[name] = str(path.resolve())

    @property
    def given(self) -> bool:
        """Whether it says anything."""
        return self != ClientTls()

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that it names."""
        return tuple(path for path in (self.ca, self.cert, self.key) if path is not None)

    def context(self) -> ssl.SSLContext:
        """For HTTP, where the well-known authorities count beside `ca`. Raises TlsFilesInvalid."""
        if (self.cert is None) != (self.key is None):
            raise TlsFilesInvalid("expected --tls-cert and --tls-key, a certificate and its key; got one of the two")
        try:
            context = ssl.create_default_context()
            if self.ca is not None:
                context.load_verify_locations(self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as error:  # an ssl.SSLError is one
            raise invalid_files(error, self.files) from None
        return context


def invalid_files(error: OSError, files: tuple[Path, ...]) -> TlsFilesInvalid:
    """The error about PEM files that could not be loaded together."""
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        return TlsFilesInvalid(f"no file {missing[0]}; `kolm init` makes certificates for development")
    why = getattr(error, "reason", None) or error.strerror or error
    names = ", ".join(map(str, files))
    return TlsFilesInvalid(f"cannot use {names}: {why}; expected PEM, and the key that belongs to the certificate")
