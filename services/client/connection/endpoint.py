"""Where a client connects to, and whether by TLS."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

import grpc

from services.client.connection.tls import ClientTls
from services.client.connection.token import is_here
from services.client.errors import FieldViolation, InvalidArgument

_HTTPS_PORT = 443


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A name for gRPC, and the credentials of a channel there: None for one that everybody on the way can read."""

    target: str
    credentials: grpc.ChannelCredentials | None

    @property
    def exposed(self) -> bool:
        """Whether what is sent can be read on the way: no TLS, and another machine."""
        return self.credentials is None and not is_here(self.target)


def endpoint(target: str, tls: ClientTls | None = None) -> Endpoint:
    """`https://host[:port]` is TLS, `http://host:port` is not; host:port and gRPC's own names are TLS where `tls` says
    anything. `tls` None is the process's. Raises InvalidArgument for other URLs, and for TLS files of no use.
    """
    tls = ClientTls.of_process() if tls is None else tls
    scheme = target.partition("://")[0]
    if scheme not in ("http", "https"):
        return Endpoint(target, _credentials(tls) if tls.given else None)
    try:
        url = urlsplit(target)
        host, port = url.hostname, url.port or (_HTTPS_PORT if scheme == "https" else None)
    except ValueError:
        host = port = None
    if not host or port is None or url.path not in ("", "/") or url.query or url.username:
        raise _refused("target", f"expected host:port or {scheme}://host:port, got {target}")
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Endpoint(place, _credentials(tls) if scheme == "https" else None)


def _credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    try:
        tls.context()  # of a wrong file, gRPC says nothing but that it cannot connect
        ca, cert, key = (None if path is None else path.read_bytes() for path in (tls.ca, tls.cert, tls.key))
    except OSError as error:
        raise _refused("tls", str(error)) from None
    return grpc.ssl_channel_credentials(ca, key, cert)


def _refused(field: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {problem}", reason="TLS_SETTINGS", violations=(FieldViolation(field, problem),))
