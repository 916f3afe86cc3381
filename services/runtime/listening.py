"""Whether a server can listen, known before it has loaded anything."""

from __future__ import annotations

import errno
import ipaddress
import socket

_WHY = {
    errno.EADDRINUSE: "another program has the port",
    errno.EADDRNOTAVAIL: "the address is not one of this machine",
    errno.EACCES: "this user may not have the port",
}


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
    """Bind `host:port` and let go of it again: gRPC would say so only at the end of a start, in lines of its own.

    Port 0 is always free. Raises CannotListen.
    """
    host, _, port = address.rpartition(":")
    if port == "0":
        return
    try:
        places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise CannotListen(address, errno.EADDRNOTAVAIL) from None
    for family, kind, protocol, _, place in places:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
            try:
                probe.bind(place)
            except OSError as error:
                raise CannotListen(address, error.errno) from None
