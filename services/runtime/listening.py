"""Listening: a check of the address before anything is loaded, the server's names, and its certificate.

gRPC and HTTP look at the files of a certificate at each handshake: a renewed one is used from the next connection on.
Files that do not belong together, or are missing, change nothing but a line in the log: the last good ones stay in use.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc

from services.client.identity import invalid_files

_log = logging.getLogger(__name__)

_WHY = {
    errno.EADDRINUSE: "another program has the port",
    errno.EADDRNOTAVAIL: "the address is not one of this machine",
    errno.EACCES: "this user may not have the port",
}

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+))(?::[0-9]*)?")
_Made = TypeVar("_Made")
_Stamp = tuple[tuple[int, int, int], ...]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there: a loopback address, or localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class CannotListen(Exception):
    """An address cannot be bound: it is in use, or not one of this machine."""

    def __init__(self, address: str, number: int | None = None) -> None:
        why = _WHY.get(number or 0, "the port is in use, or the address is not one of this machine")
        super().__init__(f"cannot listen on {address}: {why}")


def check_free(address: str) -> None:
    """Bind `host:port` and release it again. gRPC would fail only at the end of a start, with messages of its own.

    Of a name's addresses this machine needs to have one, as for gRPC: IPv6 may be off. Port 0 is always free. Raises
    CannotListen.
    """
    host, _, port = address.rpartition(":")
    if port == "0":
        return
    try:
        places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise CannotListen(address, errno.EADDRNOTAVAIL) from None
    bound = False
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: TIME_WAIT is free
                probe.bind(place)
            bound = True
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise CannotListen(address, error.errno) from None
    if not bound:
        raise CannotListen(address, errno.EADDRNOTAVAIL)


def host_name(text: str) -> str:
    """A name of DNS in lower case, without the dot of the root. Raises ValueError for all else."""
    name = text.lower().removesuffix(".")
    if not (text.isascii() and _NAME.fullmatch(name)):
        raise ValueError(
            f"expected a host name such as chat.example, without scheme and port, other letters as xn--…; got {text!r}"
        )
    return name


class ServedNames:
    """The names by which a server is called over plain HTTP: its own, localhost, and any address.

    A page of another site may point its site's own name at this server (DNS rebinding): a browser then calls the server
    by that name, and lets the page read the answer. No page can point an address elsewhere. Over TLS no names are
    needed: a browser asks for a certificate of the name that it calls.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = frozenset(names)

    def include(self, host: str) -> bool:
        """Whether a request's header Host is one of them, with or without a port, which may be a proxy's."""
        matched = _HOST.fullmatch(host)
        if matched is None:
            return False
        address, text = matched.groups()
        try:
            if address is not None:
                return bool(IPv6Address(address))
            name = host_name(text)
            if name in self._names or name == "localhost" or name.endswith(".localhost"):  # RFC 6761: loopback
                return True
            return bool(IPv4Address(name))
        except ValueError:
            return False


def misdirected(host: str) -> str:
    """The answer, with status 421, to a request for a name that the server does not have."""
    return (
        f"host: {host[:255]!a} is not a name of this server; "
        "call it by its address or localhost, or start it with --public-name NAME\n"
    )


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files. With `client_ca`, callers need a certificate of that authority (mutual TLS)."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)

    def context(self) -> ssl.SSLContext:
        """A context for HTTP; each handshake has the files as they are then. Raises TlsFilesInvalid."""
        outer, latest = self._context(), _Latest(self.files, self._context)

        def taken(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _outer: ssl.SSLContext) -> None:
            connection.context = latest.value()

        outer.sni_callback = taken
        return outer

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for gRPC; each handshake has the files as they are then. Raises TlsFilesInvalid."""
        latest = _Latest(self.files, self._configuration)
        newer: Any = latest.newer  # grpc's stubs know no fetcher that answers None, for unchanged
        return grpc.dynamic_ssl_server_credentials(latest.value(), newer, self.client_ca is not None)

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
            context.load_cert_chain(self.cert, self.key)
        except OSError as error:  # an ssl.SSLError is one
            raise invalid_files(error, self.files) from None
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        self._context()  # raises for a wrong file, with which gRPC would only fail all handshakes
        authority = None if self.client_ca is None else self.client_ca.read_bytes()
        return grpc.ssl_server_certificate_configuration([(self.key.read_bytes(), self.cert.read_bytes())], authority)


class _Latest(Generic[_Made]):
    """Something made of files, made again when one of them has changed. Safe between threads."""

    def __init__(self, files: tuple[Path, ...], make: Callable[[], _Made]) -> None:
        self._files = files
        self._make = make
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._value = make()

    def value(self) -> _Made:
        """The newest that could be made."""
        self.newer()
        return self._value

    def newer(self) -> _Made | None:
        """The newest certificate, if the files have changed since the last call; else None. Raises nothing."""
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            try:
                self._value = self._make()
            except OSError as error:
                _log.error("keeping the old certificate: %s", error)
                return None
            _log.info("loading a new certificate: %s", self._files[0])
            return self._value

    def _look(self) -> _Stamp:
        try:
            found = [path.stat() for path in self._files]
        except OSError:
            return ()
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found)
