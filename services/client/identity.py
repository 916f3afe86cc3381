"""The identity of a process as a client: the authorities that it trusts, its certificate, and the token that it shows.

A process has one identity, as it has one time zone. Its TLS files are in the variables KOLM_TLS_CA, KOLM_TLS_CERT and
KOLM_TLS_KEY: flags and settings of that name write them, so that every connection of the process and of its children
has them. Its token is in KOLM_TOKEN (the token itself, empty for none) or KOLM_TOKEN_FILE (a file with it). Without
either, a server on this machine gets the token that the server itself or `kolm up` left for its port in the user's own
folder, or else the owner's token in the folder of `kolm up`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote

CA, CERT, KEY = "KOLM_TLS_CA", "KOLM_TLS_CERT", "KOLM_TLS_KEY"


TOKEN, TOKEN_FILE, DATA_DIR = "KOLM_TOKEN", "KOLM_TOKEN_FILE", "KOLM_DATA_DIR"

_DATA_DIR = ".kolm"
_TOKEN = re.compile("[!-~]*")
_EXPECTED = "expected one word of printable ASCII, as `kolm tokens create` prints it"
_OWNERS = Path("tokens", "owner")

Metadata = tuple[tuple[str, str], ...]


class TlsFilesInvalid(OSError):
    """PEM files are missing, unreadable, or do not belong together."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files: `ca`, the authorities that servers are checked against (None: the well-known ones); `cert`, this
    client's own certificate with its chain, and its `key`, for servers that ask for one.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @classmethod
    def of_process(cls) -> Self:
        """The TLS files that the environment names."""
        ca, cert, key = (Path(named) if (named := os.environ.get(name)) else None for name in (CA, CERT, KEY))
        return cls(ca, cert, key)

    def for_process(self) -> None:
        """Set the given files for the process; later connections have them."""
        for name, path in ((CA, self.ca), (CERT, self.cert), (KEY, self.key)):
            if path is not None:
                os.environ[name] = str(path.resolve())

    @property
    def given(self) -> bool:
        """Whether any file is set."""
        return self != ClientTls()

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that it names."""
        return tuple(path for path in (self.ca, self.cert, self.key) if path is not None)

    def context(self) -> ssl.SSLContext:
        """A context for HTTP, which trusts `ca` and the well-known authorities. Raises TlsFilesInvalid."""
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


def credentials(target: str, token: str | None) -> Metadata:
    """The metadata of calls to `target`: `token`, none if it is empty, or the process's if it is None.

    Files are read each time, so that a new token counts without a restart. Raises Unauthenticated for a file that
    cannot be read, and for a token that no call can have.
    """
    shown = _of_process(target) if token is None else token
    if _TOKEN.fullmatch(shown) is None:
        raise _refused(f"the token has a blank or another character that no token has; {_EXPECTED}", "BAD_TOKEN")
    return (("authorization", f"Bearer {shown}"),) if shown else ()


def set_process_token(token: str | None, file: Path | None) -> None:
    """Set the token of the process, or the file with it."""
    os.environ.pop(TOKEN, None)
    os.environ.pop(TOKEN_FILE, None)
    if token is not None:
        os.environ[TOKEN] = token
    elif file is not None:
        os.environ[TOKEN_FILE] = str(file.resolve())


def _of_process(target: str) -> str:
    if TOKEN in os.environ:
        return os.environ[TOKEN]
    if file := os.environ.get(TOKEN_FILE):
        return _read(Path(file))
    if not is_local(target):
        return ""
    left = (*token_files(target), Path(os.environ.get(DATA_DIR) or _DATA_DIR) / _OWNERS)
    return next((_read(file) for file in left if file.is_file()), "")


def token_files(address: str) -> tuple[Path, ...]:
    """The files in which a user's clients look for the token of the server at `address` on this machine: first its own,
    then others of servers that the address may reach as well. Empty without a port, and for a user without a home.

    A file is named by the port; by host and port if the host is neither 127.0.0.1, localhost nor every address.
    """
    host, port = _host(address), address.rpartition(":")[2]
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        return ()
    every, both = (port,), (f"{host}:{port}", port)
    names = {"127.0.0.1": every, "0.0.0.0": every, "::": every, "localhost": (port, f"::1:{port}")}.get(host, both)
    return tuple(state / "kolm" / "ports" / name for name in names) if port.isdecimal() else ()


def _read(file: Path) -> str:
    try:
        token = file.read_bytes().strip().decode("latin-1")
    except OSError as error:
        raise _refused(f"cannot read the token in {file}: {error.strerror}", "BAD_TOKEN_FILE") from None
    if _TOKEN.fullmatch(token) is None:
        raise _refused(f"{file} has other characters than a token has; {_EXPECTED}", "BAD_TOKEN_FILE")
    return token


def _refused(problem: str, reason: str) -> Exception:
    from services.client.errors import Unauthenticated  # imports gRPC, which the offline verifier lacks

    return Unauthenticated(problem, reason=reason)


def is_local(target: str) -> bool:
    """Whether a target is certainly on this machine, the only place to which a token from a file of a port is sent."""
    if target.startswith("unix:"):
        return True
    host = _host(target)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host(target: str) -> str:
    place = unquote(target.rpartition("/")[2]).removeprefix("ipv4:").removeprefix("ipv6:").removeprefix("dns:")
    return place.rpartition(":")[0].strip("[]") or place
