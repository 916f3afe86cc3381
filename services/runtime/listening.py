"""The error of a server that cannot listen."""

from __future__ import annotations


class CannotListen(Exception):
    """An address cannot be bound: it is in use, or not one of this machine."""

    def __init__(self, address: str) -> None:
        super().__init__(f"cannot listen on {address}: the port is in use, or the address is not one of this machine")
