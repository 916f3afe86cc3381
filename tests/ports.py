"""Ports that a test has to know before a server listens there, or after it has stopped."""

from __future__ import annotations

import random
import socket

_BELOW_EPHEMERAL = range(20_000, 32_768)  # Linux hands out 32768 and more, for port 0 and for outgoing connections


def known_port() -> int:
    """A free port of 127.0.0.1 that nobody gets who does not ask for it, so that a server may come back to it."""
    while True:
        port = random.SystemRandom().choice(_BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
